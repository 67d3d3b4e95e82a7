"""The records of the probe and the system sampler as lanes of a Chrome trace: windows, steps and
their phases, fetches, counters."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import Any

from tdiag.evidence.from_run.event_files import Process, lead_of, workers_of
from tdiag.evidence.from_run.records import (
    BoundaryRecord,
    FetchRecord,
    ModuleRecord,
    ProcessRecord,
    RoleRecord,
    WindowRecord,
)
from tdiag.evidence.from_run.roles import assign_roles
from tdiag.evidence.from_run.slices import Ints, Slices, cut
from tdiag.evidence.from_run.step_phases import phase_of_slices
from tdiag.evidence.from_run.traced import Span, phase_spans
from tdiag.evidence.machine import SystemHistory
from tdiag.probe.wire import BY_BATCH
from tdiag.view.chrome_events import Event, complete, counter, named

CATEGORY = "tdiag"  # used by no other tool; torch-tb-profiler ignores unknown categories
# Linux gives no process or thread a number above 2²² (proc(5), pid_max).
OWN_PIDS = 1 << 22
WINDOWS, STEPS, PHASES, FETCHES = range(OWN_PIDS + 1, OWN_PIDS + 5)
MACHINE = OWN_PIDS + 9
# Phases of at most this many steps, or the lanes outgrow the trace: 7 phases, 100 bytes each.
MOST_PHASED_STEPS = 50_000

# A strip's unit → the unit shown, and the conversion factor between them.
UNITS = {"cores": ("in use", 1.0), "bytes_per_s": ("MB/s", 1e6), "bytes": ("MB", 1e6),
         "frac": ("%", 0.01)}  # fmt: skip


class Clock:
    """From the events' clock (ns) to a trace's time (µs since ``origin_ns``, Unix)."""

    def __init__(self, unix_offset_ns: int, origin_ns: int) -> None:
        self.shift = unix_offset_ns - origin_ns

    def us(self, t_ns: int) -> float:
        return (t_ns + self.shift) / 1e3


def unix_offset(processes: Iterable[Process]) -> int | None:
    """Nanoseconds from the events' clock to Unix time. Both are the machine's clocks, so the pair
    from any process is valid for all; None if none was recorded."""
    for process in processes:
        about = process.last(ProcessRecord)
        if about and about.unix_ns:
            return about.unix_ns - about.t
    return None


def lanes(processes: list[Process], clock: Clock) -> Iterator[list[Event]]:
    """The training processes' and their DataLoader workers' lanes, a list of events each."""
    lead = lead_of(processes)
    training = [p for p in processes if p.steps]
    for number, process in enumerate(sorted(training, key=lambda p: (p.rank, p.pid))):
        many = process.world_size > 1
        title = f"training, rank {process.rank}" if many else "training"
        yield _process(process.pid, title if process is lead or many else "also trains", number)
        yield list(_windows(process, clock))
        yield list(_steps(process, clock))
        yield list(_fetches(process, clock))
        for worker, loader in workers_of(process, processes).values():
            yield _process(worker.pid, worker_name(worker, loader), len(training) + number)
            yield list(_fetches(worker, clock))


def worker_name(worker: Process, loader: int) -> str:
    role = worker.last(RoleRecord)
    number = "" if role is None or role.worker is None else f" {role.worker}"
    return f"worker{number} of loader {loader}"


def counters(history: SystemHistory, clock: Clock) -> list[Event]:
    """The system's curves over the whole run, as counters of a process called machine."""
    events = [event for i in range(len(history.strips)) for event in _counter(history, i, clock)]
    return [*_process(MACHINE, "machine", -1), *events]


def _counter(history: SystemHistory, number: int, clock: Clock) -> Iterator[Event]:
    strip = history.strips[number]
    unit, scale = UNITS.get(strip.unit, (strip.unit, 1.0))
    for (begin, end), value in zip(pairwise(history.t_ns), strip.values, strict=True):
        if value is not None:  # a rate holds from the interval's begin, a reading from its end
            at = begin if strip.unit in ("cores", "bytes_per_s") else end
            yield counter(strip.name, MACHINE, clock.us(at), **{unit: round(value / scale, 3)})


def _process(pid: int, name: str, order: int) -> list[Event]:
    place = (pid, pid)
    return [named("process_name", place, name=name),
            named("process_sort_index", place, sort_index=order)]  # fmt: skip


def _lane(pid: int, tid: int, name: str) -> list[Event]:
    return [named("thread_name", (pid, tid), name=name),
            named("thread_sort_index", (pid, tid), sort_index=tid - OWN_PIDS - 10)]  # fmt: skip


def _windows(process: Process, clock: Clock) -> Iterator[Event]:
    place = (process.pid, WINDOWS)
    yield from _lane(*place, "tdiag: windows")
    opened: WindowRecord | None = None
    for window in process.all(WindowRecord):
        if window.state == "begin":
            opened = window
        elif window.state == "end" and opened is not None and opened.name == window.name:
            yield _span(window.name, place, clock, opened.t, window.t)
            opened = None


def _steps(process: Process, clock: Clock) -> Iterator[Event]:
    place = (process.pid, STEPS)
    yield from _lane(*place, "tdiag: steps")
    columns = (process.steps.number, process.steps.begin, process.steps.end, process.steps.window)
    for number, begin, end, window in zip(*(c.tolist() for c in columns), strict=True):
        yield _span(f"step {number}", place, clock, begin, end, window=window)
    place = (process.pid, PHASES)
    yield from _lane(*place, "tdiag: phases")
    for name, begin, end in _phases(process):
        yield _span(name, place, clock, begin, end)


def _span(
    name: str, place: tuple[int, int], clock: Clock, begin_ns: int, end_ns: int, **args: Any
) -> Event:
    ns = max(0, end_ns - begin_ns)
    return complete(name, CATEGORY, place, clock.us(begin_ns), ns / 1e3, **args)


def phases_of(process: Process) -> tuple[Slices, Ints]:
    """The process's steps cut at their marks, and the phase of each slice."""
    timeline = cut(process.steps)
    about = process.last(BoundaryRecord)
    boundary = about.source if about else BY_BATCH
    modules = {module.id: module for module in process.all(ModuleRecord)}
    return timeline, phase_of_slices(timeline, assign_roles(timeline, modules, boundary), boundary)


def _phases(process: Process) -> list[Span]:
    """The phases of all steps, or only of the traced ones if there are too many."""
    timeline, phases = phases_of(process)
    if len(process.steps) > MOST_PHASED_STEPS:
        return phase_spans(process.steps, timeline, phases)
    return phase_spans(process.steps, timeline, phases, set(process.steps.window.tolist()))


def _fetches(process: Process, clock: Clock) -> Iterator[Event]:
    """The recorded fetches (one in 100 ms), each with its loading and its collating."""
    found = process.all(FetchRecord)
    if not found:
        return
    place = (process.pid, FETCHES)
    yield from _lane(*place, "tdiag: fetches (at most ten a second)")
    for fetch in found:
        end = fetch.t + fetch.wall
        yield _span("fetch", place, clock, fetch.t, end, **_about(fetch))
        at = fetch.t
        for name, ns in (("load samples", fetch.load), ("collate", fetch.collate)):
            if ns:
                yield _span(name, place, clock, at, min(at + ns, end))
                at = min(at + ns, end)


def _about(fetch: FetchRecord) -> dict[str, Any]:
    shown: dict[str, Any] = {}
    if fetch.load and fetch.load_cpu is not None:
        shown["loading on a core, %"] = round(100 * fetch.load_cpu / fetch.load)
    if fetch.read is not None:
        shown["read from storage, bytes"] = fetch.read
    return shown
