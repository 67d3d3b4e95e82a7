"""A made-up machine: a host thread and device streams, run instant by instant, that writes a trace.

It knows what waits for what; the reader has only the times. A program is a list of steps, a step a
list of operations, which are tuples: see :meth:`Machine.do`. Times are in µs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tests.trace.making import Event, call, copy, kernel, note, op, step

Operation = tuple[Any, ...]
LATENCY, GAP, LAUNCH, RETURN = 7.0, 1.5, 5.0, 4.0
KINDS = {
    "pageable": "Memcpy HtoD (Pageable -> Device)",
    "pinned": "Memcpy HtoD (Pinned -> Device)",
    "value": "Memcpy DtoH (Device -> Pageable)",
}


class Machine:
    def __init__(self) -> None:
        self.now = 0.0
        self.free: dict[int, float] = {}  # when each stream is done
        self.events: list[Event] = []
        self.number = 0

    def run(self, program: Sequence[Sequence[Operation]]) -> list[Event]:
        for number, operations in enumerate(program):
            began = self.now
            for operation in operations:
                self.do(*operation)
            self.events.append(step(number + 1, began, self.now - began))
        return self.events

    @property
    def done(self) -> float:
        return max(self.now, *self.free.values())

    def do(self, what: str, *details: Any) -> None:
        """``("op", us)``: host work inside an op. ``("python", us)``: outside of any.
        ``("data", us)``: in the loader. ``("update", us)``: in the optimizer. ``("kernel", name,
        us[, stream])``. ``("join", name, us, stream, other)``: the same, after what ``other`` has
        by now. ``("pageable", us)``, ``("pinned", us)``: a copy, which the host waits for if
        pageable. ``("value", us)``: a copy to the host, then a synchronisation. ``("sync",)``."""
        if what in ("op", "python", "data", "update"):
            self._host(what, *details)
        elif what == "kernel":
            name, us, *stream = details
            self._issue(name, us, *stream)
        elif what == "join":
            name, us, stream, other = details
            self.free[stream] = max(self.free.get(stream, 0.0), self.free.get(other, 0.0) - GAP)
            self._issue(name, us, stream)
        elif what in KINDS:
            self._copy(what, *details)
        else:
            self._wait("cudaDeviceSynchronize")

    def _host(self, what: str, us: float) -> None:
        names = {"data": "enumerate(DataLoader)#_Iter.__next__", "update": "Optimizer.step#SGD"}
        if what == "op":
            self.events.append(op("aten::op", self.now, us))
        elif what in names:
            self.events.append(note(names[what], self.now, us))
        self.now += us

    def _begin(self, stream: int, us: float) -> tuple[float, float]:
        idle = stream not in self.free
        begin = max(self.now + LATENCY, 0.0 if idle else self.free[stream] + GAP)
        self.free[stream] = begin + us
        return begin, begin + us

    def _issue(self, name: str, us: float, stream: int = 7) -> None:
        self.number += 1
        begin, _ = self._begin(stream, us)
        self.events.append(kernel(name, begin, us, self.number, stream))
        self.events.append(call("cudaLaunchKernel", self.now, LAUNCH, self.number))
        self.now += LAUNCH

    def _copy(self, what: str, us: float) -> None:
        self.number += 1
        begin, end = self._begin(7, us)
        self.events.append(copy(KINDS[what], begin, us, self.number))
        returned = self.now + LAUNCH if what == "pinned" else end + RETURN
        self.events.append(call("cudaMemcpyAsync", self.now, returned - self.now, self.number))
        self.now = returned
        if what == "value":
            self._wait("cudaStreamSynchronize")

    def _wait(self, name: str) -> None:
        until = max(self.now, self.done) + RETURN
        self.events.append(call(name, self.now, until - self.now))
        self.now = until
