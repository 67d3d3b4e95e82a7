"""Several ranks of one job: whose time budget is reported, and whom the others wait for."""

from __future__ import annotations

import re
import statistics
from collections.abc import Mapping, Sequence

import numpy as np

from tdiag.evidence.device import DeviceTime
from tdiag.evidence.from_trace.intervals import Ints, clip, covered, minus, total
from tdiag.evidence.from_trace.sorted_events import COMM, COMPUTE, Rows, TraceView
from tdiag.evidence.from_trace.window import TracedWindow
from tdiag.evidence.ranks import Communication, Ranks, RankTime
from tdiag.evidence.steps import TracedSteps
from tdiag.evidence.store import Evidence
from tdiag.model.threshold import NOTICEABLE_FRAC


def merge_ranks(by_rank: Mapping[int, Evidence]) -> Evidence:
    """The evidence of the job, with :class:`Ranks` added: that of the rank the others wait for (its
    time is everybody's), else of the lowest rank. ``by_rank`` must not be empty."""
    ranks = compare_ranks(by_rank)
    chosen = min(by_rank) if ranks.slowest is None else ranks.slowest
    evidence = by_rank[chosen]
    if len(by_rank) > 1:
        evidence.add(ranks)
        evidence.note("rank", f"the report shows rank {chosen} of {len(by_rank)} traced ranks")
    return evidence


def compare_ranks(by_rank: Mapping[int, Evidence]) -> Ranks:
    """The rank that the others wait for, and how often each rank is late."""
    ranks = tuple(_rank_time(rank, evidence) for rank, evidence in sorted(by_rank.items()))
    known = {r.rank: r.communication_ns for r in ranks if r.communication_ns is not None}
    if len(known) < 2:
        return Ranks(ranks=ranks, slowest=None, waited_ns=None)
    slowest = min(known, key=lambda rank: known[rank])
    others = [ns for rank, ns in known.items() if rank != slowest]
    shortest, changing = _changing(list(by_rank.values())) or (None, None)
    return Ranks(
        ranks=ranks,
        slowest=slowest,
        waited_ns=statistics.median(others) - known[slowest],
        shortest_ns=shortest,
        changing_ns=changing,
    )


def _changing(ranks: Sequence[Evidence]) -> tuple[float, float] | None:
    """``shortest_ns`` and ``changing_ns`` of :class:`Ranks`. None if the collectives cannot be
    paired: the ranks have different numbers of them, or paired ones do not end together (different
    steps, or clocks more than half a step apart)."""
    steps = {traced.count for e in ranks if (traced := e.get(TracedSteps))}
    found = [c.collectives for e in ranks if (c := e.get(Communication))]
    if len(steps) != 1 or len(found) < len(ranks) or not found[0]:
        return None
    if len({len(collectives) for collectives in found}) > 1:
        return None
    count = steps.pop()
    ends, exposed = np.moveaxis(np.array(found, np.int64), 2, 0)  # each: ranks × collectives
    step_ns = min(d.step_ns for e in ranks if (d := e.get(DeviceTime)))
    apart = ends - ends[0]
    clocks = np.median(apart, axis=1, keepdims=True)  # machine clocks differ a little
    # Paired collectives end together; those a noticeable time apart are not the same ones.
    if (
        np.abs(clocks).max() > step_ns / 2
        or np.abs(apart - clocks).max() > NOTICEABLE_FRAC * step_ns
    ):
        return None
    shortest = exposed.min(axis=0).sum()
    on_the_whole = exposed.sum(axis=1)
    return float(shortest) / count, float(on_the_whole.min() - shortest) / count


def _rank_time(rank: int, evidence: Evidence) -> RankTime:
    steps, device = evidence.get(TracedSteps), evidence.get(DeviceTime)
    communication = evidence.get(Communication)
    return RankTime(
        rank=rank,
        step_ns=device.step_ns if device else float(steps.mean_ns) if steps else 0.0,
        components_ns=device.components_ns if device else {},
        communication_ns=communication.total_ns if communication else None,
    )


DDP = re.compile(r"DistributedDataParallel|distributed\.ddp\.reducer")
KINDS = {
    kind: re.compile(words, re.IGNORECASE)
    for kind, words in {
        "all_reduce": r"all_?reduce",
        "reduce_scatter": r"reduce_?scatter",
        "all_gather": r"all_?gather",
        "all_to_all": r"all_?to_?all|deep_?ep|dpsk::ep",
        "send_recv": r"send_?recv|nccl:(send|recv)|c10d::(send|recv_)$",
        "broadcast": r"broadcast",
    }.items()
}
MOST = 10_000  # collectives listed individually, as documented at Communication


def communication(view: TraceView, window: TracedWindow) -> Communication | None:
    """None if no communication ran on the device."""
    trace = view.trace
    rows = view.of_kind(COMM)
    spans = clip(view.spans(rows), window.begin, window.end)
    if not len(spans):
        return None
    exposed = minus(spans, view.spans(view.of_kind(COMPUTE)))
    began = window.began(view, rows)
    each = began[np.argsort(trace.ts_ns[began], kind="stable")]
    start, end = trace.ts_ns[each], trace.ends(each)
    listed = zip(end.tolist(), covered(exposed, start, end).tolist(), strict=True)
    return Communication(
        total_ns=total(spans) / window.count,
        exposed_ns=total(exposed) / window.count,
        count=len(began) / window.count,
        collectives=tuple(listed) if len(each) <= MOST else (),
        most=_kind(view, each, covered(exposed, start, end)),
        ddp=any(DDP.search(name) for name in trace.names),
    )


def _kind(view: TraceView, rows: Rows, exposed: Ints) -> str:
    """The kind of collective with most of the exposed time. Kernels of one name may serve several
    kinds (``SendRecv``, ``Generic``): then the kind that the host requested most often counts."""
    names, number = np.unique(view.trace.name[rows], return_inverse=True)
    if not len(names):
        return ""
    most = int(np.argmax(np.bincount(number, exposed)))
    kernel = view.trace.names[names[most]]
    found = next((kind for kind, words in KINDS.items() if words.search(kernel)), "")
    if found and found != "send_recv":
        return found
    asked = view.trace.names
    calls = view.trace.name[np.concatenate([view.ops, view.annotations])]
    count = np.bincount(calls, minlength=len(asked))
    by_kind = {
        kind: sum(int(count[i]) for i, name in enumerate(asked) if count[i] and words.search(name))
        for kind, words in KINDS.items()
    }
    if found:  # NCCL sends and receives for an all-to-all
        return "all_to_all" if by_kind["all_to_all"] else found
    best = max(by_kind, key=lambda kind: by_kind[kind])
    return best if by_kind[best] else ""
