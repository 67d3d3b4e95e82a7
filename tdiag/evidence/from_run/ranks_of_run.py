"""Ranks that train together: which rank the others wait for. On devices their traces show it; on
this machine's CPU their clean steps show it, as follows.

Every rank's hooks time its steps, but only the lead rank goes through windows. A step of another
rank belongs to the lead's window at the same time: all use one clock.

A collective ends for all ranks at once: the rank that the others wait for waits least in it, and
the wait of the last rank to arrive is the communication itself.

If no collective was seen (another library than torch.distributed sums the gradients) backward shows
it: it ends for all ranks at once, so the rank that begins it last has the shortest backward, and
the part of another rank's backward beyond that is waiting. (The time of the sum itself is in all of
them and unknown.)
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from tdiag.evidence.from_run.clean import Clean
from tdiag.evidence.from_run.distil import distilled_steps
from tdiag.evidence.from_run.event_files import (
    Process,
    at_the_time_of,
    fetches_of,
    read_events,
    training_of,
)
from tdiag.evidence.from_run.late_rank import late_rank, traced_together
from tdiag.evidence.from_run.records import (
    CollectiveRecord,
    DdpRecord,
    location,
)
from tdiag.evidence.from_run.slices import COMM, Ints, Slices
from tdiag.evidence.from_run.timed import Timed, beside, clean_beside
from tdiag.evidence.from_trace.ranks_of_traces import compare_ranks
from tdiag.evidence.machine import Environment
from tdiag.evidence.ranks import CollectiveLine, Collectives, Ranks, RankTime
from tdiag.evidence.steps import component_of
from tdiag.evidence.store import Evidence
from tdiag.model.threshold import MAJORITY_FRAC, NOTICEABLE_FRAC, Threshold

SAME_STEP_FRAC = Threshold(
    0.05,
    "of the lead's mean step",
    "Heuristic: a rank whose mean step differs more does not step with the lead.",
)


def rank_to_judge(
    evidence: Evidence, run_dir: Path, lead: Timed, processes: list[Process]
) -> Timed:
    """The lead, or the rank that it waits for, which determines every rank's step time. Adds Ranks
    if several ranks step together, and a note that names the rank of the report. ``evidence`` must
    contain the Environment."""
    training, apart = at_the_time_of(lead.process, processes)
    if apart:
        who = f"{len(apart)} process{'es' * (len(apart) > 1)}"
        evidence.note(
            "trained-apart", f"left out: {who} that trained before or after the judged ones"
        )
    others = len(training) - 1
    environment = evidence.get(Environment)
    if not others or environment is None:
        return lead
    judged, rank = lead, lead.process.rank
    on_device = environment.device != "cpu"
    compared = on_devices(run_dir, lead, training) if on_device else together(lead, training)
    if isinstance(compared, str):
        evidence.missing[Ranks] = compared
    elif compared is not None:
        ranks, judged = compared
        evidence.add(ranks)
        if _late(ranks) and ranks.slowest == judged.process.rank:
            everybody = {lead.process.rank: lead.process, **_others(lead.process, training)}
            evidence.add(late_rank(run_dir, lead, judged, everybody, processes))
    who, more = f"rank {judged.process.rank}", f"{others} more process{'es' * (others > 1)} trained"
    if away := [p.away.host for p in training if p.away]:
        more += f", {len(away)} of them on {', '.join(sorted(set(away)))}"
    if judged.process.away:
        who += f" on {judged.process.away.host}"
    if not any(p.rank for p in training):  # processes that share a model, or a parameter sweep
        who = f"process {judged.process.pid}, which took most steps"
    if judged is not lead:
        more = f"the others wait for it; torch calls and Python functions are those of rank {rank}"
    evidence.note("rank", f"this report is about {who}; {more}")
    return judged


def on_devices(
    run_dir: Path, lead: Timed, processes: Iterable[Process]
) -> tuple[Ranks, Timed] | str:
    """Like :func:`together`, or the reason why it is unknown."""
    everybody = {lead.process.rank: lead.process, **_others(lead.process, processes)}
    ranks = by_traces(run_dir, lead.process, everybody.values())
    if ranks is None or ranks.slowest is None or ranks.waited_ns is None:
        return "communication was traced in fewer than two ranks"
    if ranks.slowest == lead.process.rank or not _late(ranks):
        return ranks, lead
    judged = beside(lead.process, everybody[ranks.slowest])
    if judged is None:
        return (
            f"the traces show that the others wait for rank {ranks.slowest}, but it was not timed"
            f" with rank {lead.process.rank} (another machine?): use `tdiag analyze` on the"
            " traces"
        )
    return ranks, judged


def _late(ranks: Ranks) -> bool:
    """Whether the others wait noticeably for the slowest rank."""
    step_ns = next((rank.step_ns for rank in ranks.ranks if rank.rank == ranks.slowest), 0.0)
    return ranks.waited_ns is not None and ranks.waited_ns >= NOTICEABLE_FRAC * step_ns > 0


@dataclass(frozen=True)
class CleanRank:
    """A rank in the lead's clean windows: the mean ns of each phase, and of each clean step its
    begin, end and the ns waited in collectives."""

    wall_ns: dict[str, float]
    begin: Ints
    end: Ints
    comm: Ints

    @property
    def step_ns(self) -> float:
        return sum(self.wall_ns.values())


def together(lead: Timed, processes: Iterable[Process]) -> tuple[Ranks, Timed] | None:
    """All ranks that step with the lead, and the rank to judge: the one that the others wait for,
    or the lead if no rank waits noticeably. None if no rank steps with the lead."""
    others = _others(lead.process, processes)
    own = _compared(lead.process, lead.process)
    if own is None:
        return None
    ranks = {lead.process.rank: own}
    for rank, process in sorted(others.items()):
        mine = _compared(lead.process, process)
        if mine is not None and abs(mine.step_ns / own.step_ns - 1) <= SAME_STEP_FRAC:
            ranks[rank] = mine
    if len(ranks) < 2:
        return None
    if all("comm" in mine.wall_ns for mine in ranks.values()):
        found = _by_collectives(ranks)
    else:
        found = _by_meeting(ranks, by_hand=lead.process.last(DdpRecord) is None)
    late, waited = found.slowest, found.waited_ns
    assert late is not None and waited is not None
    if late == lead.process.rank or waited < NOTICEABLE_FRAC * own.step_ns:
        return found, lead
    judged = beside(lead.process, others[late])
    assert judged is not None  # as before
    return found, judged


def _compared(lead: Process, process: Process) -> CleanRank | None:
    """None if it has no clean step in the lead's windows."""
    kept = process.distilled.steps if process.distilled else None
    shift_ns = process.away.shift_ns if kept and process.away else 0
    number, begin, end, phases = (kept or distilled_steps(process)).columns(shift_ns)
    mask = clean_beside(lead, number, begin, end)
    if mask is None:
        return None
    steps = int(mask.sum())
    wall = {name: int(ns[mask].sum()) for name, ns in phases.items()}
    comm = phases.get("comm", np.zeros_like(number))
    wall_ns = {name: ns / steps for name, ns in wall.items() if ns}
    return CleanRank(wall_ns, begin[mask], end[mask], comm[mask])


def _by_meeting(ranks: Mapping[int, CleanRank], *, by_hand: bool) -> Ranks:
    """From backward's begin until gradients are summed: DistributedDataParallel does this before
    backward ends, a script that sums ``by_hand`` between backward and the optimizer's step."""
    names = ("backward", "optimizer") if by_hand else ("backward",)
    meeting = {
        rank: sum(mine.wall_ns.get(name, 0.0) for name in names) for rank, mine in ranks.items()
    }
    least = min(meeting.values())
    late = min(meeting, key=lambda rank: meeting[rank])
    times = []
    for rank, mine in sorted(ranks.items()):
        apart = {component_of(k): ns for k, ns in mine.wall_ns.items() if k not in names}
        waited = meeting[rank] - least
        times.append(
            RankTime(
                rank=rank,
                step_ns=mine.step_ns,
                components_ns={**apart, names[0]: least, "comm": waited},
                communication_ns=waited,
            )
        )
    waited = statistics.median(ns - least for rank, ns in meeting.items() if rank != late)
    return Ranks(ranks=tuple(times), slowest=late, waited_ns=waited, source="baseline")


def _by_collectives(ranks: Mapping[int, CleanRank]) -> Ranks:
    """From each rank's waiting time in collectives."""
    waits = {rank: mine.wall_ns["comm"] for rank, mine in ranks.items()}
    late = min(waits, key=lambda rank: waits[rank])
    waited = statistics.median(ns - waits[late] for rank, ns in waits.items() if rank != late)
    times = tuple(
        RankTime(
            rank=rank,
            step_ns=mine.step_ns,
            components_ns={component_of(k): ns for k, ns in mine.wall_ns.items()},
            communication_ns=waits[rank],
        )
        for rank, mine in sorted(ranks.items())
    )
    shortest = changing = None
    if (steps := _step_by_step(list(ranks.values()))) is not None:
        shortest = float(steps.min(axis=0).mean())
        changing = float(steps.mean(axis=1).min()) - shortest
    return Ranks(
        ranks=times,
        slowest=late,
        waited_ns=waited,
        shortest_ns=shortest,
        changing_ns=changing,
        source="baseline",
    )


def _step_by_step(ranks: Sequence[CleanRank]) -> npt.NDArray[np.float64] | None:
    """Ranks × steps: each rank's waiting time in collectives, for those clean steps of the first
    rank during which the middle of exactly one clean step of every other rank falls. None if these
    are not most steps.
    """
    begins, ends = ranks[0].begin, ranks[0].end
    whole = np.ones(len(begins), np.bool_)
    rows = []
    for mine in ranks:
        middles = (mine.begin + mine.end) / 2
        low, high = np.searchsorted(middles, begins), np.searchsorted(middles, ends)
        whole &= high - low == 1
        rows.append(mine.comm[np.minimum(low, len(middles) - 1)].astype(np.float64))
    return np.stack(rows)[:, whole] if whole.mean() > MAJORITY_FRAC else None


def _others(lead: Process, processes: Iterable[Process]) -> dict[int, Process]:
    """For each other rank the process with most steps."""
    found: dict[int, Process] = {}
    for process in processes:
        rank, steps = process.rank, process.head.steps
        if steps and rank != lead.rank and (rank not in found or steps > found[rank].head.steps):
            found[rank] = process
    return found


def by_traces(run_dir: Path, lead: Process, processes: Iterable[Process]) -> Ranks | None:
    """The ranks by their traces; None if no other rank traced the same steps as the lead."""
    found = traced_together(run_dir, lead, processes)
    return compare_ranks(found) if found else None


def batch_samples(run_dir: Path, loaders: Iterable[int]) -> dict[int, dict[int, float]]:
    """Mean samples per batch of each of these loaders, by rank; uncounted ranks are absent. All
    fetches count, also those before the clean steps, because batch sizes are the same."""
    processes = read_events(run_dir)
    by_pid = {process.pid: process for process in processes}
    everybody = {p.rank: p for p in sorted(training_of(processes), key=lambda p: p.head.steps)}
    found: dict[int, dict[int, float]] = {}
    for loader in loaders:
        for rank, process in everybody.items():
            counted = [f.samples for f in fetches_of(process, by_pid, {loader})]
            if known := [samples for samples in counted if samples is not None]:
                found.setdefault(loader, {})[rank] = statistics.fmean(known)
    return found


def make_collectives(process: Process, timeline: Slices, clean: Clean) -> Collectives | None:
    """The collectives; None if none was seen in any step."""
    records = {record.id: record for record in process.all(CollectiveRecord)}
    if not records:
        return None
    steps = max(1, int(clean.mask.sum()))
    regions = np.flatnonzero((timeline.kind == COMM) & clean.mask[timeline.step])
    inside = np.isin(timeline.owner, regions)
    spent = np.bincount(timeline.owner[inside], timeline.ns[inside], len(timeline.kind))
    lines = []
    for number, record in records.items():
        mine = regions[timeline.arg[regions] == number]
        if len(mine):
            wall = float(spent[mine].sum()) / steps
            at = location(record.at)
            count = len(mine) / steps
            lines.append(
                CollectiveLine(name=record.name, at=at, count=count, wall_ns=wall, by=record.by)
            )
    return Collectives(lines=tuple(sorted(lines, key=lambda line: -line.wall_ns)))
