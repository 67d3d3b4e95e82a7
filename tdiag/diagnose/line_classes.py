"""Lines whose overhead has a class of its own: they log, compute the loss in Python, or copy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from tdiag.diagnose.preparing import lines_on_batch, prepared_by
from tdiag.evidence.roofline import Roof, Work
from tdiag.evidence.sampled import CallTrees, Stacks
from tdiag.evidence.steps import Budget
from tdiag.evidence.store import Evidence
from tdiag.evidence.torch_ops import Dispatch, OpLine, Ops
from tdiag.evidence.training import Modules
from tdiag.model.diagnosis import Finding
from tdiag.model.place import Spot
from tdiag.model.threshold import MAJORITY_FRAC
from tdiag.rules.base import NOISE_FLOOR_FRAC, same_function
from tdiag.rules.both_sides import on_both_sides
from tdiag.rules.epochs import between_epochs, epochs_place
from tdiag.rules.fixed_cost import LITTLE_WORK_FRAC, moves_memory
from tdiag.rules.hooks import observing
from tdiag.rules.log_lines import described, logging_spots
from tdiag.rules.loop_lines import of_the_loss


def classes_of_lines(evidence: Evidence, budget: Budget) -> dict[Spot, str]:
    """``logging``: lines that mostly write logs, or make what is only logged, and hooks that only
    look. ``python_loss``: lines that a function of the loss calls. ``cpu``: lines that make data
    again for each epoch, and what calls them. ``memory``: lines that mostly copy large tensors."""
    stacks, ops, trees = evidence.get(Stacks), evidence.get(Ops), evidence.get(CallTrees)
    logging = logging_spots(stacks) | {line.at.spot for line in described(stacks, ops, trees)}
    logging |= observing(ops, trees)
    return {
        **dict.fromkeys(_moving(evidence, budget), "memory"),
        **dict.fromkeys(_made_again(budget, stacks, ops, trees, evidence.get(Modules)), "cpu"),
        **dict.fromkeys(of_the_loss(stacks, ops, trees), "python_loss"),
        **dict.fromkeys(logging, "logging"),
    }


def with_line_classes(
    findings: Sequence[Finding], evidence: Evidence, budget: Budget | None
) -> list[Finding]:
    """Findings of overhead with the class of their line, as the verdict counts them. Work on a
    loader's batch, or on one made by hand, is preprocessing if it is all before the forward."""
    if budget is None:
        return list(findings)
    lines, on_batch = classes_of_lines(evidence, budget), lines_on_batch(evidence, budget)
    throughout = on_both_sides(evidence.get(Ops), evidence.get(CallTrees))
    found = []
    for finding in findings:
        cls, at = class_of(finding, lines), finding.location
        beside = at is not None and at.spot in throughout
        if cls == "overhead" and finding.components == ("prepare",) and not beside:
            cls = "cpu" if at and at.spot in on_batch else prepared_by(evidence) or cls
        found.append(replace(finding, cls=cls))
    return found


def class_of(finding: Finding, of_lines: Mapping[Spot, str]) -> str:
    """The finding's class; for overhead that of its line, if it has one."""
    at = finding.location if finding.cls == "overhead" else None
    return of_lines.get(at.spot, finding.cls) if at else finding.cls


def _made_again(
    budget: Budget,
    stacks: Stacks | None,
    ops: Ops | None,
    trees: CallTrees | None,
    modules: Modules | None,
) -> set[Spot]:
    lines = between_epochs(budget, stacks, ops, trees, modules)
    place = epochs_place(lines, ops, trees)
    return {line.at.spot for line in lines} | ({place.spot} if place else set())


def _moving(evidence: Evidence, budget: Budget) -> set[Spot]:
    """Lines that take too little of the step for a finding are left out: a finding there is about
    what they call, such as a join of what a function returned."""
    ops, dispatch = evidence.get(Ops), evidence.get(Dispatch)
    if ops is None or dispatch is None:
        return set()
    work, roof = evidence.get(Work), evidence.get(Roof)
    return {
        line.at.spot
        for line in ops.lines
        if line.elapsed_ns >= NOISE_FLOOR_FRAC * budget.step_ns
        and moves_memory(line, dispatch)
        and not _few_bytes(line, work, roof)
    }


def _few_bytes(line: OpLine, work: Work | None, roof: Roof | None) -> bool:
    """Whether its function's traced work takes much less time at best than its calls do: a join of
    many small tensors takes long for their number."""
    if work is None or roof is None:
        return False
    beside = [x for x in work.ops if x.at and not x.backward and same_function(x.at, line.at)]
    best = sum(map(roof.best_ns, beside))
    return bool(beside) and best <= LITTLE_WORK_FRAC * line.elapsed_ns


def of_constants(ops: Ops | None) -> set[Spot]:
    """Lines that mostly compute what is the same in every step, and so make no batch."""
    lines = ops.lines if ops else ()
    return {x.at.spot for x in lines if x.constant_ns > MAJORITY_FRAC * x.elapsed_ns}
