"""Time that no mark explains gets the class of the lines to which samples put it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tdiag.evidence.sampled import CallTrees, StackLine, Stacks
from tdiag.evidence.steps import Budget, phase_of_component
from tdiag.evidence.store import Evidence
from tdiag.evidence.torch_ops import Dispatch, Ops
from tdiag.model.threshold import MAJORITY_FRAC, NOTICEABLE_FRAC
from tdiag.rules.base import same_function
from tdiag.rules.fixed_cost import FIXED_COST_FACTOR, NO_OVERHEAD_NS
from tdiag.rules.loop_lines import (
    AFTER,
    BEFORE,
    beside_the_step,
    by_elimination,
    phase_of,
    within_the_step,
)
from tdiag.rules.thresholds import MIN_SAMPLES

if TYPE_CHECKING:
    from tdiag.diagnose.costs import Costs

_COMPONENTS = ("unattributed", "prepare", "other")
OUTSIDE = ("", "prepare", "after_step")  # phases that the budget does not count as work of the step


def preparing_line(evidence: Evidence, budget: Budget) -> StackLine | None:
    """The line above the forward to which samples put most of the time before it, if any."""
    lines = above(evidence)
    most = MAJORITY_FRAC * budget.share("prepare")
    return lines[0] if lines and most and lines[0].self_frac >= most else None


def above(evidence: Evidence) -> list[StackLine]:
    return beside_the_step(BEFORE, evidence.get(Stacks), evidence.get(Ops), evidence.get(CallTrees))


def explain_by_lines(costs: Costs, evidence: Evidence, budget: Budget) -> None:
    """Time between the marks that no finding explains gets the class of its lines, if lines of one
    class take most of it: compute if a line's torch calls take longer than their fixed cost, else
    overhead. Where no mark separates anything (no loader, no module, an update by hand), that is
    the whole step. A function called both before the forward and after the step shows in neither,
    so what is left is explained by the lines of all that time together."""
    stacks = evidence.get(Stacks)
    if budget.has_device or stacks is None or stacks.samples < MIN_SAMPLES:
        return
    for component in _COMPONENTS:
        left = costs.unknown.get(component, 0.0)
        if left and left >= MAJORITY_FRAC * budget.components_ns[component]:
            lines = _lines_in(component, stacks, evidence)
            ops = evidence.get(Ops)
            lines = lines or [
                x for x in stacks.training if by_elimination(x, budget, ops) == component
            ]
            _explain(costs, (component,), lines, evidence, budget)
    left = sum(costs.unknown.get(name, 0.0) for name in _COMPONENTS)
    if left >= NOTICEABLE_FRAC * budget.step_ns:
        _explain(costs, _COMPONENTS, _outside(stacks, evidence), evidence, budget)


def _outside(stacks: Stacks, evidence: Evidence) -> list[StackLine]:
    """The lines before the forward, after the step, and in no known phase, if their functions do
    not make all their torch calls in other phases."""
    ops = evidence.get(Ops)
    within = within_the_step(stacks, ops, evidence.get(CallTrees)) if ops else {}
    found = []
    for line in stacks.training:
        around = {x.phase for x in ops.lines if same_function(x.at, line.at)} if ops else set()
        phase = phase_of(line, ops) or within.get(line.at.spot, "")
        if phase in OUTSIDE and (not around or around & set(OUTSIDE)):
            found.append(line)
    return found


def _explain(
    costs: Costs,
    components: tuple[str, ...],
    lines: list[StackLine],
    evidence: Evidence,
    budget: Budget,
) -> None:
    stacks = evidence.get(Stacks)
    # Samples that end in a hook show no line: a thread often gets its core back there.
    lined = 1 - stacks.probe_frac if stacks else 1.0
    by_class: dict[str, list[StackLine]] = {"compute": [], "overhead": []}
    for line in lines:
        works = _works(line, evidence, budget.step_ns * line.self_frac / lined)
        if works is None:
            continue
        by_class["compute" if works else "overhead"].append(line)
    shares = {cls: sum(line.self_frac for line in of_it) for cls, of_it in by_class.items()}
    cls = max(shares, key=lambda name: shares[name])
    if shares[cls] < MAJORITY_FRAC * sum(map(budget.share, components)) * lined:
        return
    line = by_class[cls][0]
    if costs.by_line is None or line.self_frac > costs.by_line[1].self_frac:
        costs.by_line = cls, line
    left = sum(costs.unknown.pop(name, 0.0) for name in components)
    if cls == "compute":
        costs.compute += left
    else:
        costs.add("overhead", left)


def _works(line: StackLine, evidence: Evidence, ns: float) -> bool | None:
    """Whether the line's torch calls take longer than their fixed cost; None if the fixed cost was
    not measured and they are not longer than any. ``ns``: the line's time per step."""
    ops, dispatch = evidence.get(Ops), evidence.get(Dispatch)
    here = [x for x in ops.lines if x.at.spot == line.at.spot] if ops else []
    if not here:
        return False
    if dispatch is None:
        return True if ns > NO_OVERHEAD_NS * sum(x.calls for x in here) else None
    return ns > FIXED_COST_FACTOR * dispatch.least_ns(here)


def _lines_in(component: str, stacks: Stacks, evidence: Evidence) -> list[StackLine]:
    """The lines whose torch calls are in this component, most samples first. In unattributed time
    also those without torch calls, unless they or their functions are known to run in other
    phases."""
    ops = evidence.get(Ops)
    if (phase := phase_of_component(component)) != "unattributed":
        calling = {x.at.spot for x in ops.lines if x.phase == phase} if ops else set()
        return [x for x in stacks.training if x.at.spot in calling and phase_of(x, ops) == phase]
    beside = [
        x
        for side in (BEFORE, AFTER)
        for x in beside_the_step(side, stacks, ops, evidence.get(CallTrees))
    ]
    found = []
    for line in stacks.training:
        known = {x.phase for x in ops.lines if same_function(x.at, line.at)} if ops else set()
        own = phase_of(line, ops) in ("", phase) and line not in beside
        if own and (not known or phase in known):
            found.append(line)
    return found
