"""One rank makes the others wait

## What it measures
The communication of every traced rank. A collective ends for all ranks at once, so the rank that
the others wait for communicates least; the others' waiting time is the median of their
communication beyond its own. The cause is the work in which this rank exceeds the median of the
others most. On CPUs `tdiag run` compares the clean steps of all ranks on the machine: backward, in
which gradients are summed, ends for all at once, so its part beyond the shortest one is waiting.

Four comparisons with the median of the others show why it is late. Its batches: samples and bytes,
padding included, as its DataLoader fetched them. Its work: torch calls and floating-point
operations in the traces of the same steps. Its cores: how long its main thread was ready and waited
for one, by the kernel's counters. Its lines: stacks that py-spy sampled on all ranks of the machine
(up to 8) at once. A rank with more work for the same data is reported with the line whose extra
time is largest, unless all its lines are slower to the same degree: then other programs use its
cores, and no line is at fault. If the others do not run that line at all, this is said. A rank with
the same data and the same work is reported as slower.

## Why it is slow
Every step ends when the last rank arrives. All other devices idle in the collective until then.

## What to do
If it waits for a core, give it one that nothing else uses. If it gets more data, distribute the
data evenly. If it does the same work but takes longer, look at its machine: other programs on its
cores, its device's clock. Otherwise fix what takes this rank longer: its storage, or work that only
this rank does (preparing all ranks' batches, say): every rank can do its part of that. The fix
names the first of this rank's own findings about the same part of the step.

## How the gain is computed
Of more data, more work, or work that only this rank does: shared by all N ranks, the late one keeps
an N-th of what it has more. High end: all of that; low end: half, because the shares stay uneven.
For other reasons no gain is claimed: the waiting time equals the time that the cause takes on this
rank, and the report's step and findings are this rank's.

## When this advice is wrong
Ranks that do different work by design (pipeline stages, parameter servers) arrive at different
times. The rule reports only if one kind of work explains most of the waiting; even so, a few traced
steps may have caught a rank at a slow moment.
"""

from __future__ import annotations

from collections.abc import Iterator

from tdiag.evidence.device import Syncs, Transfers
from tdiag.evidence.feeding import Loaders
from tdiag.evidence.machine import Environment
from tdiag.evidence.ranks import LateRank, Ranks
from tdiag.evidence.sampled import Stacks
from tdiag.evidence.steps import Budget, component_of
from tdiag.evidence.store import Evidence
from tdiag.evidence.torch_ops import Ops
from tdiag.evidence.training import Modules
from tdiag.model.diagnosis import Fix, Measure
from tdiag.model.place import Place
from tdiag.model.threshold import MAJORITY_FRAC
from tdiag.rules.base import COMPUTE, DATA_WAIT, Found, Gain, bytes_, count, ns, text, where
from tdiag.rules.examples import rank_time, ranks_of
from tdiag.rules.fetch_lines import top_fetch_lines
from tdiag.rules.loop_lines import main_line
from tdiag.rules.stragglers import MACHINES, Straggler, abstain_unless_alone, straggler_of
from tdiag.rules.thresholds import LOW_END_FRAC
from tdiag.units import duration

CODE = "TD902"
NAME = "straggler-rank"
CLASS = "straggler"
UNTRIED = "only the script knows how its data and work are dealt out"

# Component → what to do on the late rank (an action, and how).
_ADVICE = {
    "data_wait": (
        "Speed up the data loading of the late rank",
        "compare its loader with the others': sample sizes, disk, free cores",
    ),
    "evaluation": (
        "Let every rank evaluate its share",
        "let every rank evaluate its share, and sum the results",
    ),
    "checkpoint": (
        "Save checkpoints asynchronously",
        "save in a background thread (torch.distributed.checkpoint.async_save), or less often",
    ),
    "forward": (
        "Give the late rank no more work than the others",
        "balance the work (sequence lengths, batch sizes), and compare its cores and what else"
        " runs there",
    ),
    "h2d": (
        "Reduce the late rank's copies to its device",
        "compare the bytes it copies, and whether they are pinned",
    ),
    "d2h": (
        "Reduce the late rank's copies to the host",
        "copy results every k-th step only, or keep them on the device",
    ),
    "sync": (
        "Remove synchronisations that only the late rank makes",
        "remove what only this rank waits for, such as logging under `if rank == 0`",
    ),
    "alloc": ("Free memory on the late rank", "compare its memory in use with the others'"),
    "compute": (
        "Give the late rank no more work than the others",
        "balance the work (sequence lengths, batch sizes), and compare its device's clock:"
        " nvidia-smi -q -d CLOCK,PERFORMANCE",
    ),
}
_WHY = {
    "work": (
        "Give the late rank no more work than the others",
        "let all ranks compute the same, or balance what is distributed (sequence lengths, experts,"
        " parts of the model)",
    ),
    "data": (
        "Give every rank as much data",
        "use one batch size on all ranks, and distribute samples by their length (tokens, not"
        " sequences, per batch)",
    ),
    "alone": (
        "Share what only the late rank does",
        "let every rank do its part of it, or do it less often",
    ),
    "cores": (
        "Give the late rank a core of its own",
        "no change to the script helps; look at what else runs on its host (top), and bind every"
        " rank to cores of its own (taskset, numactl, the launcher's option)",
    ),
    "speed": (
        "Find what slows down the late rank's machine",
        "its work is that of the others, so no change to the script helps; compare its cores, what"
        " else runs there, its thread count, and its device's clock: nvidia-smi -q -d"
        " CLOCK,PERFORMANCE",
    ),
}
_SHARED = ("data", "work", "alone")  # what the other ranks can take a part of
_ELSE = (
    "Find what slows down the late rank",
    "compare its cores and what else runs on its host, and look for work that only it does",
)


def check(
    ranks: Ranks | None,
    late: LateRank | None,
    environment: Environment | None,
    syncs: Syncs | None,
    transfers: Transfers | None,
    loaders: Loaders | None,
    stacks: Stacks | None,
    ops: Ops | None,
    budget: Budget | None,
    modules: Modules | None,
) -> Found | None:
    if ranks is None:
        abstain_unless_alone(environment, "only one rank was traced")
        return None
    straggler = straggler_of(ranks, late)
    if straggler is None:
        return None
    cause, rank = straggler.cause, straggler.rank
    at = _place(straggler, late, syncs, transfers, loaders, stacks)
    # Where lines were compared with the others', the top line of this rank alone says nothing.
    if at is None and ranks.source == "trace" and straggler.why not in ("data", *MACHINES):
        line = main_line(cause, stacks, ops)
        at = line.at if line else None
    if at is None and straggler.why == "work":
        at = _model_called_at(modules)
    source = ranks.source
    action, how = _WHY.get(straggler.why) or _ADVICE.get(cause, _ELSE)
    return Found(
        summary=straggler.sentence,
        evidence=(
            text("rank", str(rank.rank), source),
            ns("the others wait for it", straggler.waited_ns, source),
            ns("its communication", rank.communication_ns or 0.0, source),
            ns(f"its {cause}", rank.components_ns[cause], source),
            ns(f"{cause}, median of the others", straggler.of_the_others(cause), source),
            *(_compared(late) if late is not None and late.rank == rank.rank else ()),
        ),
        fix=Fix(f"On rank {rank.rank}{where(at)}: {how}.", "manual", action=action),
        gain=_shared(straggler) if budget and straggler.why in _SHARED else None,
        at=at,
    )


def _shared(straggler: Straggler) -> Gain:
    """What the late rank has more is shared by all."""
    ranks = len(straggler.others) + 1
    saved = straggler.waited_ns * (1 - 1 / ranks)
    return Gain(
        saved * LOW_END_FRAC,
        saved,
        f"high end: the {duration(straggler.waited_ns)} are shared by {ranks} ranks; low end: half"
        " of that.",
        tuple(dict.fromkeys((*DATA_WAIT, *COMPUTE, component_of(straggler.cause)))),
    )


def _compared(late: LateRank) -> Iterator[Measure]:
    """Its number, and the median of the others'."""
    for name, found, of, source in (
        ("samples in a batch", late.samples, count, "fetch"),
        ("bytes of a batch", late.batch_bytes, bytes_, "fetch"),
        ("torch calls", late.calls, count, "trace"),
        ("floating-point operations", late.flops, count, "trace"),
        ("its line", late.line_ns, ns, "sample"),
        ("waiting for a core", late.queued_ns, ns, "system"),
    ):
        if found is not None:
            yield of(name, found.own, source)
            yield of(f"{name}, median of the others", found.others, source)


def _place(
    straggler: Straggler,
    late: LateRank | None,
    syncs: Syncs | None,
    transfers: Transfers | None,
    loaders: Loaders | None,
    stacks: Stacks | None,
) -> Place | None:
    """The line that costs most of it; the evidence other than ``ranks`` is the late rank's own."""
    cause = straggler.cause
    if straggler.why in MACHINES:
        return None
    if straggler.why == "data":
        return late.dealt_at if late else None
    line = None
    if late and late.rank == straggler.rank.rank and straggler.stands_out(late.line_ns):
        line = late.line
    if cause == "data_wait":
        train = loaders.train() if loaders else None
        if train is None:
            return None
        if line and not train.num_workers:  # the fetches are in the sampled thread
            return line
        lines = top_fetch_lines(train, stacks)
        known = [line.at for line in lines if line.self_frac > MAJORITY_FRAC]
        return known[0] if known else train.created_at
    costs: list[tuple[float, Place | None]] = []
    if cause == "sync" and syncs is not None:
        costs = [(x.idle_after_ns, x.at) for x in syncs.syncs]
    elif transfers is not None:
        costs = [(x.exposed_ns, x.at) for x in transfers.copies if x.direction == cause]
    costly = [(cost, at) for cost, at in costs if at is not None and cost]
    return max(costly, key=lambda entry: entry[0])[1] if costly else line


def _model_called_at(modules: Modules | None) -> Place | None:
    """Where the late rank's larger inputs enter its largest model."""
    trained = [x for x in (modules.modules if modules else ()) if x.trained_at and not x.is_loss]
    largest = max(trained, key=lambda x: x.parameters, default=None)
    return largest.trained_at if largest else None


def fires() -> Evidence:
    """Rank 1 waits for data while the other two wait for it."""
    late = rank_time(1, 6, data_wait=54, compute=40, comm=6)
    return Evidence().add(
        ranks_of(rank_time(0, 60, compute=40, comm=60), late, rank_time(2, 58, compute=42, comm=58))
    )


def clear() -> Evidence:
    """Three ranks that arrive together: their communication is the network's time."""
    return Evidence().add(ranks_of(*(rank_time(n, 58 + n, compute=40, comm=58) for n in range(3))))
