"""A GPU run made of a CPU run: device work is put into the trace that the probe exported.

A planted script trains on the CPU under the probe. :func:`inject` then says what its ops would have
launched on a device. It runs these launches through queues as a device would (a stream runs its
work in order; a wait holds up the host), stretches the recorded host times by what the host would
have waited, and writes a run directory whose process says that it computed on a CUDA device. The
clean steps are the traced ones again and again: here the profiler slows nothing. The host's own
times are scaled to ``HOST_US`` a step, so that a busy machine changes no verdict.

Everything else (python stacks, shapes, phases, counted calls, modules) is what the probe recorded.
"""

from __future__ import annotations

import json
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate
from operator import add
from pathlib import Path
from typing import Any

from tdiag.probe.wire import BASELINE, ON_CPU, TRACE

Event = dict[str, Any]
GB = 1 << 30

# µs: as tests/trace/machine.py has them.
LATENCY, GAP, LAUNCH, RETURN = 7.0, 1.5, 5.0, 4.0
MAIN_STREAM = 7
HOST_US = 4_000.0  # of a traced step: some forty ops and an optimizer, as a fast CPU issues them
CLEAN_STEPS = 60  # copies of the traced ones
COPIES = {
    "pageable": "Memcpy HtoD (Pageable -> Device)",
    "pinned": "Memcpy HtoD (Pinned -> Device)",
    "value": "Memcpy DtoH (Device -> Pageable)",
}
# What the host waits in, and for how long the call itself holds it up (µs).
WAITS = {"synchronize": "cudaDeviceSynchronize", "malloc": "cudaMalloc", "free": "cudaFree"}
MALLOC_US = 400.0


@dataclass(frozen=True)
class Work:
    """What one op launches. ``kind``: ``kernel`` (then ``name`` is its own), a key of ``COPIES``,
    or of ``WAITS``. ``us``: its device time."""

    us: float
    name: str = ""
    kind: str = "kernel"
    stream: int = MAIN_STREAM
    bytes: int = 64 << 20


@dataclass(frozen=True)
class Gpu:
    """The device that the run says it computed on. ``allocated``: torch's peak. ``throttle``: what
    NVML says holds its clock down to ``sm_mhz``. ``host_us``: what the host needs for a step."""

    name: str = "NVIDIA A100-SXM4-80GB"
    capability: tuple[int, int] = (8, 0)
    memory: int = 80 * GB
    allocated: int = 20 * GB
    cudnn_benchmark: bool = False
    sm_mhz: int = 1410
    throttle: tuple[str, ...] = ()
    host_us: float = HOST_US

    def described(self) -> dict[str, Any]:
        return {"kind": "cuda", "index": 0, "name": self.name, "uuid": None, "memory": self.memory}


@dataclass
class _Queues:
    """Runs launches through streams. ``held``: (moment on the CPU run's clock, µs that the host was
    held up there); the moments come in order. ``steps``: begin and end of the traced steps on the
    CPU run's clock, µs. What the probe did between them is left out, and the steps are scaled to
    ``host_us`` on average.
    """

    steps: Sequence[tuple[float, float]]
    host_us: float = HOST_US
    free: dict[int, float] = field(default_factory=dict)
    held: list[tuple[float, float]] = field(default_factory=list)
    late: float = 0.0
    number: int = 0
    events: list[Event] = field(default_factory=list)

    def issue(self, at: float, work: Work, lane: Mapping[str, Any]) -> None:
        """One launch by the host at ``at`` (µs, CPU run's clock)."""
        now = self._scaled(at) + self.late
        if work.kind in WAITS:
            busy = max([now, *self.free.values()]) - now
            took = busy + (RETURN if work.kind == "synchronize" else MALLOC_US)
            self._call(at, WAITS[work.kind], took, lane)
            return
        self.number += 1
        begin = max(now + LATENCY, self.free.get(work.stream, 0.0) + GAP)
        end = self.free[work.stream] = begin + work.us
        self._work(work, begin)
        if work.kind == "kernel":
            self._call(at, "cudaLaunchKernel", LAUNCH, lane, self.number)
            return
        waits = work.kind != "pinned"
        took = end + RETURN - now if waits else LAUNCH
        self._call(at, "cudaMemcpyAsync", took, lane, self.number)
        if work.kind == "value":
            self._call(at, "cudaStreamSynchronize", RETURN, lane)

    def moved(self, t: float) -> float:
        """When the moment ``t`` of the CPU run comes in the GPU run."""
        before = bisect_left(self.held, (t, 0.0))
        return self._scaled(t) + self._sums[before]

    def __post_init__(self) -> None:
        self._begins = [begin for begin, _ in self.steps]
        self._inside = [0.0, *accumulate(end - begin for begin, end in self.steps)]

    def _scaled(self, t: float) -> float:
        at = bisect_right(self._begins, t) - 1
        inside = 0.0
        if at >= 0:
            begin, end = self.steps[at]
            inside = self._inside[at] + min(t, end) - begin
        return self._begins[0] + inside * self.host_us * len(self.steps) / self._inside[-1]

    def finish(self) -> None:
        self._sums = [0.0]
        for _, us in self.held:
            self._sums.append(self._sums[-1] + us)

    def _call(
        self, at: float, name: str, took: float, lane: Mapping[str, Any], number: int = 0
    ) -> None:
        args = {"correlation": number} if number else {}
        self.events.append(
            {"ph": "X", "cat": "cuda_runtime", "name": name, "ts": self._scaled(at) + self.late,
             "dur": took, **lane, "args": args}
        )  # fmt: skip
        self.late += took
        self.held.append((at, took))

    def _work(self, work: Work, begin: float) -> None:
        args: dict[str, Any] = {
            "device": 0, "stream": work.stream, "correlation": self.number
        }  # fmt: skip
        category, name = "kernel", work.name
        if work.kind in COPIES:
            category, name = "gpu_memcpy", COPIES[work.kind]
            args["bytes"] = work.bytes
        self.events.append(
            {"ph": "X", "cat": category, "name": name, "ts": begin, "dur": work.us, "pid": 0,
             "tid": work.stream, "args": args}
        )  # fmt: skip


def inject(
    source: Path,
    target: Path,
    launches: Mapping[str, tuple[Work, ...]],
    gpu: Gpu,
    syncs: Sequence[tuple[str, int, str]] = (),
) -> Path:
    """Write a GPU run to ``target``; ``source`` is the run directory of the CPU run.

    ``launches``: name of an op or of a function of the script → what each call of it launches. An
    op inside one of the same name launches nothing. ``syncs``: places at which torch warns of a
    synchronisation, once a step.
    """
    (file,) = (source / "events").glob("*.jsonl")
    records = [json.loads(line) for line in file.read_text().splitlines()]
    traced = max((r for r in records if r["kind"] == "trace"), key=lambda r: r["steps"])
    trace = json.loads((source / traced["file"]).read_text())
    process = next(r for r in records if r["kind"] == "process")
    base_ns = trace.get("baseTimeNanoseconds", 0) - (process["unix_ns"] - process["t"])
    traced_steps = _traced(records, traced["pass"])
    spans = [((r["s"] - base_ns) / 1000, (r["t"] - base_ns) / 1000) for r in traced_steps]
    queues = _Queues(spans, gpu.host_us)
    _launch(trace["traceEvents"], launches, queues)
    _stretch(trace["traceEvents"], queues)
    trace["traceEvents"] += queues.events
    trace["deviceProperties"] = [
        {"id": 0, "name": gpu.name, "totalGlobalMem": gpu.memory,
         "computeMajor": gpu.capability[0], "computeMinor": gpu.capability[1]}
    ]  # fmt: skip
    (target / "events").mkdir(parents=True)
    (target / traced["file"]).parent.mkdir()
    (target / traced["file"]).write_text(json.dumps(trace))
    clean_from = max(
        r["t"] for r in records
        if r["kind"] == "window" and r["name"] == BASELINE and r["state"] == "begin"
    )  # fmt: skip
    told = [
        *(_told(r, gpu, syncs) for r in records if r["kind"] not in ("steps", "trace")),
        *_steps(traced_steps, clean_from, queues, base_ns),
        traced,
    ]
    (target / "events" / file.name).write_text("".join(json.dumps(r) + "\n" for r in told))
    run = {"schema": 1, "command": ["python", "script.py"], "script": "script.py"}
    (target / "system.jsonl").write_text(
        "".join(json.dumps(r) + "\n" for r in _sampled(clean_from, gpu))
    )
    (target / "run.json").write_text(json.dumps(run))
    return target


def _sampled(clean_from: int, gpu: Gpu) -> Iterator[dict[str, Any]]:
    """What the system sampler records of the device during the clean steps: every 20 ms."""
    about = {"index": 0, "memory_total": gpu.memory, "sm_max_mhz": 1410}
    yield {"kind": "machine", "cores_machine": 8, "cores_allowed": 8.0, "gpus": [about]}
    now = {"index": 0, "util": 1.0, "sm_mhz": gpu.sm_mhz, "throttle": gpu.throttle}
    for number in range(60):
        yield {"kind": "sample", "t": clean_from + number * 20_000_000, "gpus": [now]}


def _launch(
    events: list[Event],
    launches: Mapping[str, tuple[Work, ...]],
    queues: _Queues,
) -> None:
    inside = dict.fromkeys(launches, float("-inf"))
    calls = [(name, e) for e in events if (name := _called(e)) in launches]
    for name, op in sorted(calls, key=lambda call: (call[1]["ts"], -call[1]["dur"])):
        if op["ts"] < inside[name]:
            continue
        inside[name] = op["ts"] + op["dur"]
        middle = op["ts"] + op["dur"] / 2
        for work in launches[name]:
            queues.issue(middle, work, {"pid": op["pid"], "tid": op["tid"]})
    queues.finish()


def _called(event: Event) -> str:
    """``aten::mm``, or ``send`` of the Python function ``script.py(18): send``."""
    if event.get("cat") == "python_function":
        return str(event["name"]).rpartition(": ")[2]
    return str(event["name"]) if event.get("cat") == "cpu_op" else ""


def _stretch(events: list[Event], queues: _Queues) -> None:
    for event in events:
        if event.get("ph") in ("X", "s", "f", "i") and event.get("cat") != "Trace":
            begin = queues.moved(event["ts"])
            if "dur" in event:
                event["dur"] = queues.moved(event["ts"] + event["dur"]) - begin
            event["ts"] = begin


def _told(
    record: dict[str, Any], gpu: Gpu, syncs: Sequence[tuple[str, int, str]]
) -> dict[str, Any]:
    """The record as a process on this device writes it."""
    if record["kind"] == "torch":
        return record | {"devices": [gpu.name], "device": gpu.described(), "cuda": "12.8"}
    if record["kind"] == "window":
        held = {"allocated": gpu.allocated, "peak": gpu.allocated, "reserved": gpu.allocated}
        # Its waits are part of the stretched steps: nothing is left to wait for at the end.
        return record | held | ({"drained": 0} if record["state"] == "end" else {})
    if record["kind"] == "flags":
        return record | {"cudnn_benchmark": gpu.cudnn_benchmark}
    if record["kind"] == "ops":
        return record | {"syncs": [[place, record["steps"]] for place in syncs]}
    return record


def _traced(records: list[dict[str, Any]], number: int) -> list[dict[str, Any]]:
    """The steps of the trace of this pass."""
    begun = next(
        r["t"] for r in records
        if r["kind"] == "window" and (r["name"], r["pass"], r["state"]) == (TRACE, number, "begin")
    )  # fmt: skip
    return [r for r in records if r["kind"] == "steps" and r["w"] == TRACE and r["s"] >= begun]


def _steps(
    traced: list[dict[str, Any]], clean_from: int, queues: _Queues, base_ns: int
) -> Iterator[dict[str, Any]]:
    """The traced steps, stretched; before them the same ones as clean steps. ``base_ns``: what is
    added to a trace's time to have the events' clock."""

    def moved(t: int) -> int:
        return base_ns + round(queues.moved((t - base_ns) / 1000) * 1000)

    stretched = [_mapped(r, moved, r["i"]) for r in traced]
    at, index = clean_from + 1000, 1
    while index <= CLEAN_STEPS:
        for step in stretched[1:] or stretched:  # the first waits for no work of a step before
            shift = at - step["s"]
            clean = _mapped(step, partial(add, shift), index)
            yield clean | {"w": BASELINE}
            at += step["t"] - step["s"]
            index += step["n"]
    yield from (step | {"i": step["i"] + index} for step in stretched)


def _mapped(record: dict[str, Any], moved: Callable[[int], int], index: int) -> dict[str, Any]:
    """The host is always on a core: CUDA's waits spin, and no other program disturbs it."""
    marks = list(record["m"])
    for place in range(0, len(marks), 3):
        if marks[place] == ON_CPU:  # of the mark that follows
            marks[place + 1] = moved(record["m"][place + 4]) - moved(record["s"])
        else:
            marks[place + 1] = moved(marks[place + 1])
    return record | {"i": index, "s": moved(record["s"]), "t": moved(record["t"]), "m": marks}
