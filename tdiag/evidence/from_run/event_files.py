"""Reads ``events/<pid>.jsonl``: the records of each process of the run."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import reduce
from operator import or_
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import numpy as np
from msgspec.structs import replace

from tdiag.evidence.from_run import counted_records  # noqa: F401
from tdiag.evidence.from_run.digest import Distilled, ProcessHead
from tdiag.evidence.from_run.records import (
    BoundaryRecord,
    FetchRecord,
    IteratorRecord,
    LateRecord,
    ProcessRecord,
    Record,
    RoleRecord,
    StepsRecord,
    TorchRecord,
)
from tdiag.evidence.from_run.slices import StepTable, step_table
from tdiag.probe.wire import BASELINE, BY_BATCH, EventsFile, events_files

R = TypeVar("R", bound=Record)

# The wall clock changes far less between two processes' starts, and two machines do not boot in the
# same second.
SAME_CLOCK_NS = 1_000_000_000

_decoder: msgspec.json.Decoder[Record] = msgspec.json.Decoder(
    # A union of all kinds, distinguished by their tags; kinds from other files are imported above.
    reduce(or_, Record.__subclasses__())
)


@dataclass(frozen=True)
class Away:
    """A machine other than the one that represents the run: its name, its run directory, and the
    offset that was added to its times."""

    host: str
    part: Path
    shift_ns: int


@dataclass
class Process:
    """One process's records, in the order written.

    ``steps`` holds the steps since the last ``boundary`` record: earlier steps are void.
    ``broken_lines``: number of lines that cannot be a record, including a truncated last line.
    ``distilled``: None if it was not distilled; its times and numbers are those of its machine.
    """

    pid: int
    records: dict[type[Record], list[Record]] = field(default_factory=dict)
    steps: StepTable = field(default_factory=lambda: step_table([]))
    broken_lines: int = 0
    name: str = ""  # its file's name
    away: Away | None = None
    distilled: Distilled | None = None

    def all(self, kind: type[R]) -> list[R]:
        return self.records.get(kind, [])  # type: ignore[return-value]

    def last(self, kind: type[R]) -> R | None:
        found = self.all(kind)
        return found[-1] if found else None

    @property
    def rank(self) -> int:
        return self._recorded("rank") or 0

    @property
    def world_size(self) -> int:
        return self._recorded("world_size") or 1

    def _recorded(self, name: str) -> int | None:
        """The rank in the process group once it trains, else in the launcher's environment (runs of
        an older tdiag)."""
        role, process = self.last(RoleRecord), self.last(ProcessRecord)
        known = getattr(role, name, None)
        return known if known is not None else getattr(process, name, None)

    def sampled_in(self, home: Path) -> tuple[Path, int]:
        """The directory with the samples of its machine, and the offset that was added to its own
        times. ``home``: the directory that represents the run."""
        return (self.away.part, self.away.shift_ns) if self.away else (home, 0)

    @property
    def evaluates(self) -> bool:
        """Whether its steps are a loader's batches without any backward: an evaluation, unless no
        other process of the run trains."""
        about = self.last(BoundaryRecord)
        return about is not None and about.source == BY_BATCH

    @property
    def head(self) -> ProcessHead:
        about, torch, steps = self.last(ProcessRecord), self.last(TorchRecord), self.steps
        return ProcessHead(
            pid=self.pid, rank=self.rank, world_size=self.world_size, evaluates=self.evaluates,
            steps=len(steps),
            began=int(steps.begin[0]) if len(steps) else 0,
            ended=int(steps.end[-1]) if len(steps) else 0,
            clock_ns=about.unix_ns - about.t if about else None,
            intra_op=torch.intra_op if torch else None,
            broken_lines=self.broken_lines,
        )  # fmt: skip

    @property
    def tid(self) -> int | None:
        """Native id of the thread that trains or fetches, which py-spy uses for threads."""
        role = self.last(RoleRecord)
        return role.tid if role else None


class Unread(Process):
    """A process that was distilled: its file is read when its records are needed."""

    distilled: Distilled

    def __init__(self, file: EventsFile, distilled: Distilled) -> None:
        self.pid, self.name = file.pid, file.name
        self.broken_lines = distilled.head.broken_lines
        self.away, self.distilled = None, distilled
        self.file, self.moved = file, _unmoved

    @property
    def head(self) -> ProcessHead:
        head, ns = self.distilled.head, self.away.shift_ns if self.away else 0
        clock_ns = None if head.clock_ns is None else head.clock_ns - ns
        return replace(
            head, pid=self.pid, began=head.began + ns, ended=head.ended + ns, clock_ns=clock_ns
        )

    rank = property(lambda self: self.distilled.head.rank)
    world_size = property(lambda self: self.distilled.head.world_size)
    evaluates = property(lambda self: self.distilled.head.evaluates)

    def __getattr__(self, name: str) -> Any:
        if name not in ("records", "steps"):
            raise AttributeError(name)
        read = read_process(self.file)
        self.records, self.steps = self.moved(read.records, read.steps)
        return getattr(self, name)


Records = dict[type[Record], list[Record]]


def _unmoved(records: Records, steps: StepTable) -> tuple[Records, StepTable]:
    return records, steps


def read_events(run_dir: Path) -> list[Process]:
    """Every process of the run that wrote events; an unreadable file counts as one broken line."""
    return [read_process(file) for file in events_files(run_dir)]


def read_process(file: EventsFile) -> Process:
    """One events file. Unknown kinds are ignored; lines that are not records are counted."""
    process = Process(file.pid, name=file.name)
    try:
        lines = file.read(last=True)  # the process may have been killed before the last newline
    except OSError:
        process.broken_lines = 1
        return process
    for _, line in lines:
        _take(process, line)
    process.steps = step_table(process.records.pop(StepsRecord, []))  # type: ignore[arg-type]
    return process


def _take(process: Process, line: bytes) -> None:
    try:
        record = _decoder.decode(line)
    except msgspec.ValidationError:
        return  # a newer probe's kind
    except msgspec.DecodeError:
        process.broken_lines += 1
        return
    if isinstance(record, BoundaryRecord):
        for void in (StepsRecord, LateRecord):
            process.records.pop(void, None)
    process.records.setdefault(type(record), []).append(record)


def training_of(processes: list[Process]) -> list[Process]:
    """Processes that ended steps. If some of them train, those that only evaluate are left out
    (such as the parent of Hogwild processes)."""
    stepping = [p for p in processes if p.head.steps]
    return [p for p in stepping if not p.evaluates] or stepping


def lead_of(processes: list[Process]) -> Process | None:
    """The training process that is judged: lowest rank, then most steps; None if no process ended a
    step."""
    training = training_of(processes)
    return min(training, key=lambda p: (p.rank, -p.head.steps), default=None)


def at_the_time_of(lead: Process, processes: list[Process]) -> tuple[list[Process], list[Process]]:
    """The training processes that made steps at the same time as the lead (and the lead itself),
    and those that did so before or after: of a restarted job, or of another one. Processes with
    another clock count as being of the lead's time."""
    mine: list[Process] = []
    apart: list[Process] = []
    began, ended = lead.head.began, lead.head.ended
    for process in training_of(processes):
        head = process.head
        one_clock = process.away or lead.away or _same_clock(lead, process)
        at_once = head.began <= ended and began <= head.ended
        (mine if at_once or not one_clock else apart).append(process)
    return mine, apart


def nearest_of(lead: Process, processes: list[Process]) -> Process | None:
    """Of another machine's processes, the one that trained at the lead's time, or closest to it;
    None if none trained."""
    began, ended = _wall(lead)

    def apart(process: Process) -> tuple[int, int, int]:
        first, last = _wall(process)
        return max(first - ended, began - last, 0), process.rank, -process.head.steps

    return min(training_of(processes), key=apart, default=None)


def _wall(process: Process) -> tuple[int, int]:
    head = process.head
    return head.began + (head.clock_ns or 0), head.ended + (head.clock_ns or 0)


def beside_of(lead: Process, processes: list[Process]) -> list[Process]:
    """The other processes of this machine that trained during most of the lead's clean steps (or,
    if it has none, of all its steps)."""
    clean = lead.steps.inside({BASELINE})
    chosen = clean if clean.any() else ~clean
    begin, end = lead.steps.begin[chosen], lead.steps.end[chosen]
    found = []
    for process in training_of(processes):
        if process is lead or not _same_clock(lead, process):
            continue
        began, ended = process.head.began, process.head.ended
        shared = np.maximum(np.minimum(end, ended) - np.maximum(begin, began), 0).sum()
        if shared > 0.5 * (end - begin).sum():
            found.append(process)
    return found


def _same_clock(one: Process, other: Process) -> bool:
    """Whether both ran on one machine: the monotonic clock starts at boot, so its distance from the
    wall clock differs between machines."""
    offset, another = one.head.clock_ns, other.head.clock_ns
    return offset is not None and another is not None and abs(offset - another) < SAME_CLOCK_NS


def workers_of(lead: Process, processes: list[Process]) -> dict[int, tuple[Process, int]]:
    """The lead's DataLoader workers: pid → (process, loader id)."""
    loader_of = {pid: it.loader for it in lead.all(IteratorRecord) for pid in it.pids}
    return {p.pid: (p, loader_of[p.pid]) for p in processes if p.pid in loader_of}


def fetches_of(
    process: Process, by_pid: Mapping[int, Process], loaders: Collection[int]
) -> Iterable[FetchRecord]:
    """The fetches of these loaders of a process, in the process itself and in its workers."""
    for fetch in process.all(FetchRecord):
        if fetch.worker is None and fetch.loader in loaders:
            yield fetch
    workers = {p for it in process.all(IteratorRecord) if it.loader in loaders for p in it.pids}
    for pid in workers & by_pid.keys():
        yield from (f for f in by_pid[pid].all(FetchRecord) if f.worker is not None)
