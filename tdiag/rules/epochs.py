"""Lines that run between two epochs: at the start of each, before its first batch is requested."""

from __future__ import annotations

from collections.abc import Sequence

from tdiag.evidence.sampled import CallTrees, StackLine, Stacks
from tdiag.evidence.steps import Budget
from tdiag.evidence.torch_ops import Ops
from tdiag.evidence.training import Modules
from tdiag.model.place import Place
from tdiag.model.threshold import MAJORITY_FRAC
from tdiag.rules.callers import common_caller
from tdiag.rules.loop_lines import BEFORE, beside_the_step, most_sampled, trains_at


def between_epochs(
    budget: Budget,
    stacks: Stacks | None,
    ops: Ops | None,
    trees: CallTrees | None,
    modules: Modules | None,
) -> list[StackLine]:
    """Lines above the forward that run after the step, most samples first: at the start of an
    epoch, before its first batch is requested. The budget decides: its time before the forward is
    less than half of these lines' time, and its time after the step is at least half of it. None
    if one of them calls a model that is trained: what they make changes with its weights."""
    lines = beside_the_step(BEFORE, stacks, ops, trees)
    trained = [m for m in modules.modules if m.trained_at] if modules else []
    acting = {m.evaluated_at.spot for m in trained if m.evaluated_at}
    if any(line.at.spot in acting for line in lines):
        return []
    most = MAJORITY_FRAC * sum(line.self_frac for line in lines)
    return lines if budget.share("prepare") < most <= budget.share("other") else []


def epochs_place(
    lines: Sequence[StackLine], ops: Ops | None, trees: CallTrees | None
) -> Place | None:
    """Where lines run that epochs repeat: the one that does most of the work, or else the line that
    all of it comes from, unless that trains as well."""
    if not lines or ops is None or most_sampled(lines) is not None:
        return lines[0].at if lines else None
    caller = common_caller({line.at.spot for line in lines}, trees)
    return lines[0].at if caller is None or trains_at(caller, ops, trees) else caller
