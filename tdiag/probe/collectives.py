"""Marks the time in which the training thread waits for other processes of the job, on a CPU.

Calls of ``torch.distributed`` and ``Work.wait`` are wrapped. DistributedDataParallel's waiting at
the end of backward is in C++: its reducer reports when the last gradient was ready, and from then
until backward ends the thread waits for the gradients' sums and copies them. With a device these
calls only issue work, so its trace is used instead.
"""

from __future__ import annotations

import atexit
import functools
import sys
import time
import weakref
from typing import TYPE_CHECKING, Any

import torch

from . import accelerator, places
from .boundary import Boundary, is_compiling
from .patches import RETURNS, hidden
from .record import MOST_VALUES, here, wall_ns
from .wire import COMM_BEGIN, COMM_END, is_user_file

if TYPE_CHECKING:
    from types import FrameType

    from .core import Probe

# Functions that return when the data has arrived, or with async_op=True a Work to wait for. isend
# and irecv never wait, and P2POp compares them by identity.
NAMES = (
    "all_gather", "all_gather_coalesced", "all_gather_into_tensor", "all_gather_object",
    "all_gather_single", "all_reduce", "all_reduce_coalesced", "all_to_all", "all_to_all_single",
    "barrier", "broadcast", "broadcast_object_list", "gather", "gather_object",
    "monitored_barrier", "recv", "recv_object_list", "reduce", "reduce_scatter",
    "reduce_scatter_single", "reduce_scatter_tensor", "scatter", "scatter_object_list", "send",
    "send_object_list",
)  # fmt: skip
BUFFERS = "_broadcast_coalesced"  # DistributedDataParallel's buffers, before a forward
REDUCER = "DistributedDataParallel"  # its gradients
LET_GO_S = 0.1  # some time slices of a busy machine; 0 of 40 jobs of two ranks crashed with it
MOST_PLACES = 64  # lines described individually


def let_go() -> None:
    """Wait until the groups' threads have freed the tensors of the last collectives.

    They need the interpreter for that. torch crashes if it begins to end meanwhile (6 of 45 jobs
    of two gloo ranks, without tdiag; beside busy neighbours 5 of 22 with it, which delays the end),
    or if a profiler with Python stacks is switched, which goes through the list of threads without
    its lock (torch 2.13).
    """
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        time.sleep(LET_GO_S)


def leave_groups() -> None:
    """Leave the process groups, when the run was ended before the script could. torch keeps the
    threads of a group that a profiler or a dispatch mode has seen."""
    let_go()
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


class CollectiveWatch:
    """``inside``: a wrapped call runs; the calls inside it are part of it."""

    def __init__(self, probe: Probe, boundary: Boundary) -> None:
        self.probe, self.boundary = probe, boundary
        self.inside = False
        self.numbers: dict[Any, int] = {}  # (code, instruction) of the caller, or a name → number
        # id of a reducer that waits for its backward → the reducer, when it was prepared for it,
        # and when its last gradient was ready in the previous backward (relative to that moment).
        self.prepared: dict[int, tuple[Any, int, int]] = {}

    def install(self) -> None:
        distributed = torch.distributed
        if not distributed.is_available():
            return
        from torch._C._distributed_c10d import Reducer, Work
        from torch.distributed import distributed_c10d

        for name in NAMES:
            if (original := getattr(distributed_c10d, name, None)) is not None:
                watched = self._watched(original, name)
                for module in (distributed_c10d, distributed):
                    if getattr(module, name, None) is original:
                        self.probe.patches.set(module, name, watched, RETURNS)
        if (original := getattr(distributed, BUFFERS, None)) is not None:
            self.probe.patches.set(distributed, BUFFERS, self._watched(original, "broadcast"),
                                   RETURNS)  # fmt: skip
        self._watch_wait(Work)
        self._watch_reducer(Reducer)
        atexit.register(self._at_exit)

    def _at_exit(self) -> None:
        """The script may have left its groups, but objects in which they are may remain."""
        if self.numbers:
            time.sleep(LET_GO_S)

    def reduced(self, began: int) -> None:
        """A backward that began at ``began`` ends: DistributedDataParallel has waited for the
        gradients' sums since the last gradient was ready."""
        ready = 0
        for key, (reference, since, before) in list(self.prepared.items()):
            reducer = reference()
            last = _last_ready(reducer) if reducer is not None else before
            if last != before:
                ready = max(ready, since + last)
            if last != before or reducer is None:
                del self.prepared[key]
        now = wall_ns()
        if began <= ready <= now:  # it uses the wall clock, which may be set
            put = self.probe.marks.put
            put((COMM_BEGIN, ready, self._number(REDUCER, REDUCER)))
            put((COMM_END, now, 0))

    def _watched(self, original: Any, name: str) -> Any:
        @functools.wraps(original)
        def call(*args: Any, **kwargs: Any) -> Any:
            if is_compiling() or not self._counts():
                return original(*args, **kwargs)
            self._begin(name)
            try:
                return original(*args, **kwargs)
            finally:
                self._end()

        return hidden(call)

    def _watch_wait(self, work: Any) -> None:
        original = work.wait
        collectives = self

        # pybind11 checks with exactly this name and first argument whether a Python class overrides
        # the method, so that calling the original from here does not come back here.
        @functools.wraps(original)
        def wait(self: Any, *args: Any, **kwargs: Any) -> Any:
            if is_compiling() or not collectives._counts():
                return original(self, *args, **kwargs)
            collectives._begin("wait")
            try:
                return original(self, *args, **kwargs)
            finally:
                collectives._end()

        self.probe.patches.set(work, "wait", hidden(wait), RETURNS)

    def _watch_reducer(self, reducer: Any) -> None:
        original, collectives = reducer.prepare_for_backward, self

        @functools.wraps(original)
        def prepare_for_backward(self: Any, *args: Any, **kwargs: Any) -> Any:
            if not is_compiling() and collectives._counts():
                collectives.probe.guard(collectives._prepare)(self)
            return original(self, *args, **kwargs)

        watched = hidden(prepare_for_backward)
        self.probe.patches.set(reducer, "prepare_for_backward", watched, RETURNS)

    def _prepare(self, reducer: Any) -> None:
        before = _last_ready(reducer)
        self.boundary.reduced = self.probe.guard(self.reduced)
        self.prepared[id(reducer)] = weakref.ref(reducer), wall_ns(), before

    def _counts(self) -> bool:
        """Whether the training thread is here, outside any other such call, and waits itself."""
        marks = self.probe.marks
        mine = here() == marks.thread and not self.inside and len(marks.log) <= MOST_VALUES
        return mine and not accelerator.kind()

    def _begin(self, name: str) -> None:
        self.inside = True
        frame = sys._getframe(2)
        key = frame.f_code, frame.f_lasti
        self.probe.marks.put((COMM_BEGIN, wall_ns(), self._number(key, name, frame)))

    def _end(self) -> None:
        self.inside = False
        self.probe.marks.put((COMM_END, wall_ns(), 0))

    def _number(self, key: Any, name: str, frame: FrameType | None = None) -> int:
        """``frame``: the caller; its module is recorded if it is a library's."""
        number = self.numbers.get(key)
        if number is None:
            if len(self.numbers) >= MOST_PLACES:
                key = name  # all further lines count as one
            number = self.numbers.setdefault(key, len(self.numbers))
            self.probe.guard(self.probe.recorder.write)(
                "collective", id=number, name=name, at=places.caller(), by=_library(frame)
            )
        return number


# Dynamo skips these where a frame begins, as it does torch's own collectives.
for _name in ("reduced", "_prepare", "_counts", "_begin", "_end", "_number"):
    hidden(getattr(CollectiveWatch, _name))


def _library(frame: FrameType | None) -> str:
    if frame is None or is_user_file(frame.f_code.co_filename):
        return ""
    return str(frame.f_globals.get("__name__", ""))


def _last_ready(reducer: Any) -> int:
    """ns from ``prepare_for_backward`` until the last gradient was ready."""
    return max(reducer.get_backward_stats(), default=0)
