"""The user's own line that a verdict names when no finding does."""

from __future__ import annotations

from collections.abc import Sequence

from tdiag.evidence.data import Loaders
from tdiag.evidence.kinds import Phases, StackLine, Stacks
from tdiag.evidence.store import Evidence
from tdiag.model.diagnosis import Finding
from tdiag.rules.base import where
from tdiag.units import percent

# With fewer samples a line's share of 5 % (what a verdict calls moderate) is four samples or fewer.
MIN_SAMPLES = 100
# Phases by the budget's name where it differs.
_PHASE = {"other": "after_step"}


def unexplained_place(evidence: Evidence, component: str) -> str:
    """Where the unexplained time of this budget component lies, in words."""
    if component == "other":
        return "after the optimizer's step"
    if component == "unattributed":
        return "in places that no hook tells apart"
    phases = evidence.get(Phases)
    if phases is not None and "data_wait" not in phases.wall_ns:
        return "between the step's end and the first forward"
    return "between the batch and the first forward"


def sampled_there(evidence: Evidence, component: str) -> str:
    """The training thread's line sampled most in this component, or that none is known.

    A line whose samples fell into several phases stands in where no line is of this one.
    """
    stacks = evidence.get(Stacks)
    if stacks is None or stacks.samples < MIN_SAMPLES:
        return "nothing tells why"
    phase = _PHASE.get(component, component)
    there = [x for x in stacks.training if x.phase == phase]
    top = _top(there or [x for x in stacks.training if not x.phase])
    return f"sampled most:{_named(top)} of the samples" if top else "nothing tells why"


def fetched_by(evidence: Evidence, findings: Sequence[Finding]) -> str:
    """What a verdict on the input adds where no finding speaks of it: the line that fetches."""
    loaders, stacks = evidence.get(Loaders), evidence.get(Stacks)
    train = loaders.train() if loaders else None
    if findings:
        return ""
    if stacks is not None:
        waiting = [x for x in stacks.training if x.phase == "data_wait"]
        top = _top(stacks.workers if train and train.num_workers else waiting)
        if top:
            of = "of the workers' samples" if train and train.num_workers else "of the samples"
            return f"; sampled most:{_named(top)} {of}"
    return f"; the loader is made{where(train.created_at)}" if train and train.created_at else ""


def _top(lines: Sequence[StackLine]) -> StackLine | None:
    return max(lines, key=lambda line: line.self_frac, default=None)


def _named(line: StackLine) -> str:
    function = f" in {line.at.function}" if line.at.function else ""
    return f"{where(line.at).removeprefix(' at')}{function}, {percent(line.self_frac)}"
