"""Why the rank that the others wait for is late.

Four records show it. Fetches: the size of every rank's batches. Traces of the same steps: the
amount of work in them. Stacks, which py-spy samples on all ranks of a machine at once: the user's
line in which the late rank spends time that the others do not. The kernel's counters: how long
every rank's main thread waited for a core.
"""

from __future__ import annotations

import statistics
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path

from tdiag.errors import RunError
from tdiag.evidence.from_run.digest import Batches, Sums
from tdiag.evidence.from_run.distil import batches_of
from tdiag.evidence.from_run.event_files import Process
from tdiag.evidence.from_run.machine_samples import SYSTEM, queued_fracs
from tdiag.evidence.from_run.records import (
    LoaderRecord,
    TraceRecord,
    location,
)
from tdiag.evidence.from_run.stack_files import sampled_pids
from tdiag.evidence.from_run.stack_samples import (
    find_samples,
    make_stacks,
    read_stacks,
)
from tdiag.evidence.from_run.timed import Timed, beside
from tdiag.evidence.from_run.traced import trace_file
from tdiag.evidence.from_trace.trace_files import read_files
from tdiag.evidence.ranks import CERTAIN_ERRORS, Beside, LateRank
from tdiag.evidence.roofline import Work
from tdiag.evidence.store import Evidence
from tdiag.evidence.torch_ops import HostOps
from tdiag.model.place import Place


def late_rank(
    run_dir: Path,
    lead: Timed,
    late: Timed,
    everybody: Mapping[int, Process],
    processes: list[Process],
) -> LateRank:
    """Compare the data, the work and the line of ``late`` with those of the other ranks.
    ``everybody``: the training processes, by rank."""
    training = {number for number, role in lead.roles.loaders.items() if role == "train"}
    samples, batch_bytes = _batches(late.process.rank, everybody, processes, training)
    calls, flops = _work(run_dir, lead.process, late.process, everybody)
    line, line_ns = _line(run_dir, lead, late, everybody, processes)
    return LateRank(
        rank=late.process.rank,
        samples=samples,
        batch_bytes=batch_bytes,
        dealt_at=_dealt_at(late.process, training),
        calls=calls,
        flops=flops,
        line=line,
        line_ns=line_ns,
        queued_ns=_queued(run_dir, late, everybody),
    )


# --- data ---------------------------------------------------------------------------------------


def _batches(
    late: int,
    everybody: Mapping[int, Process],
    processes: Iterable[Process],
    training: Collection[int],
) -> tuple[Beside | None, Beside | None]:
    """Samples and bytes of a training batch. ``training``: the loaders' numbers."""
    by_pid = {process.pid: process for process in processes}
    found = {rank: _counted(p, by_pid, training) for rank, p in everybody.items()}
    return (
        _compared(late, {rank: batches.samples for rank, batches in found.items()}),
        _compared(late, {rank: batches.bytes for rank, batches in found.items()}),
    )


def _counted(process: Process, by_pid: Mapping[int, Process], training: Collection[int]) -> Batches:
    """The batches of all its training loaders."""
    kept = process.distilled.batches if process.distilled else batches_of(process, by_pid)
    mine = [kept.get(loader, Batches()) for loader in training]
    return Batches(
        sum((one.samples for one in mine), Sums()), sum((one.bytes for one in mine), Sums())
    )


def _compared(late: int, of_rank: Mapping[int, Sums]) -> Beside | None:
    """The late rank's mean and the median of the others' means."""
    own = of_rank[late]
    others = [found for rank, found in of_rank.items() if rank != late and found.count]
    if not own.count or not others:
        return None
    return Beside(
        own=own.mean,
        others=statistics.median(found.mean for found in others),
        error=(own.variance + statistics.median(found.variance for found in others)) ** 0.5,
    )


def _dealt_at(process: Process, training: Collection[int]) -> Place | None:
    loaders = [loader for loader in process.all(LoaderRecord) if loader.id in training]
    places = (location(loader.sampler_at) or location(loader.at) for loader in loaders)
    return next(filter(None, places), None)


# --- work ---------------------------------------------------------------------------------------


def _work(
    run_dir: Path, lead: Process, late: Process, everybody: Mapping[int, Process]
) -> tuple[Beside | None, Beside | None]:
    """Torch calls and floating-point operations. The late rank is compared with the lead, a late
    lead with one other rank: two traces are enough, even for a thousand ranks."""
    other = lead if late.rank != lead.rank else _another(late, everybody.values())
    if other is None:
        return None, None
    found = traced_together(run_dir, lead, [late, other])
    if not {late.rank, other.rank} <= found.keys():
        return None, None
    one, two = found[late.rank], found[other.rank]
    return _pair(_calls(one), _calls(two)), _pair(_flops(one), _flops(two))


def _another(late: Process, processes: Iterable[Process]) -> Process | None:
    return next((p for p in processes if p.rank != late.rank and p.all(TraceRecord)), None)


def _pair(own: float | None, others: float | None) -> Beside | None:
    return None if own is None or others is None else Beside(own=own, others=others)


def _calls(evidence: Evidence) -> float | None:
    ops = evidence.get(HostOps)
    return ops.per_step if ops else None


def _flops(evidence: Evidence) -> float | None:
    work = evidence.get(Work)
    return sum(op.flops for op in work.ops) if work else None


def traced_together(
    run_dir: Path, lead: Process, processes: Iterable[Process]
) -> dict[int, Evidence]:
    """By rank, the work in the traces of the same steps; empty if fewer than two ranks traced the
    lead's traced steps. The later pass is used, because its trace has more steps."""
    passes = sorted({record.number for record in lead.all(TraceRecord)}, reverse=True)
    everybody = list(processes)
    for number in passes:
        files: dict[int, Path] = {}
        for process in everybody:
            for record in process.all(TraceRecord):
                path = trace_file(run_dir / record.file)
                if record.number == number and path is not None:
                    files[process.rank] = path
        if lead.rank not in files or len(files) < 2:
            continue
        read = dict(zip(files, read_files(list(files.values())), strict=True))
        found = {rank: f.evidence for rank, f in read.items() if not isinstance(f, RunError)}
        if len(found) > 1:
            return found
    return {}


# --- lines --------------------------------------------------------------------------------------


def _line(
    run_dir: Path,
    lead: Timed,
    late: Timed,
    everybody: Mapping[int, Process],
    processes: list[Process],
) -> tuple[Place | None, Beside | None]:
    """The user's line in which the late rank spends most time beyond the median of the others. None
    if no other rank was sampled, or if chance may explain the difference."""
    sampled: set[int] = set()
    sampled.update(*map(sampled_pids, read_stacks(run_dir, lead.process)))
    own = _lines(run_dir, lead.process, late, processes)
    others = []
    for rank, process in everybody.items():
        if rank == late.process.rank or process.pid not in sampled:
            continue
        mine = lead if rank == lead.process.rank else beside(lead.process, process)
        if mine is not None and (lines := _lines(run_dir, lead.process, mine, processes)):
            others.append(lines)
    found: list[tuple[Place, Beside]] = []
    for at, (ns, variance) in own.items():
        theirs = [lines.get(at, (0.0, 0.0)) for lines in others]
        if theirs:
            usual = statistics.median(ns for ns, _ in theirs)
            usual_variance = statistics.median(variance for _, variance in theirs)
            error = (variance + usual_variance) ** 0.5
            if ns - usual > CERTAIN_ERRORS * error:
                found.append((at, Beside(own=ns, others=usual, error=error)))
    return max(found, key=lambda pair: pair[1].own - pair[1].others, default=(None, None))


def _lines(
    run_dir: Path, lead: Process, mine: Timed, processes: list[Process]
) -> dict[Place, tuple[float, float]]:
    """For each sampled line of the training thread: ns per clean step, and its variance."""
    samples = find_samples(run_dir, lead, mine.process, processes)
    if samples is None or not samples.training:
        return {}
    step_ns = sum(mine.phases.wall_ns.values())
    count = len(samples.training)
    return {
        line.at: (
            line.self_frac * step_ns,
            line.self_frac * (1 - line.self_frac) / count * step_ns**2,
        )
        for line in make_stacks(samples, 0.0).training
    }


# --- cores --------------------------------------------------------------------------------------


def _queued(run_dir: Path, late: Timed, everybody: Mapping[int, Process]) -> Beside | None:
    """Time per step that the main threads waited for a core; None if it is unknown for the late
    rank or for all others."""
    seen: dict[Path, dict[int, float]] = {}
    shares: dict[int, float] = {}
    for rank, process in everybody.items():
        home, shift = process.sampled_in(run_dir)
        if home not in seen:
            spans = [(begin - shift, end - shift) for begin, end in late.clean.spans]
            seen[home] = queued_fracs(home / SYSTEM, spans)
        if process.pid in seen[home]:
            shares[rank] = seen[home][process.pid]
    own = shares.pop(late.process.rank, None)
    if own is None or not shares:
        return None
    step_ns = sum(late.phases.wall_ns.values())
    return Beside(own=own * step_ns, others=statistics.median(shares.values()) * step_ns)
