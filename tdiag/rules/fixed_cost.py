"""What the calls of forward and backward cost before they do any work."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from tdiag.evidence.kinds import Dispatch, OpLine, Ops, Phases
from tdiag.rules.base import Abstain

# Layers on one element (Linear, Conv2d, LayerNorm, BatchNorm2d, ReLU, GELU, Softmax), forward and
# backward, took 1.8 to 6.2 times a torch.add with gradients, measured with torch 2.13 on a CPU:
# up to this factor, forward and backward can be nothing but fixed costs.
FIXED_COST_FACTOR = 6.0
# A torch.add with gradients, backward included, took 4.5 times one without in that trial. Far more
# than that is no fixed cost of torch but a switch left on (anomaly detection: 30 times).
GRAD_CALL_MOST = 8.0


@dataclass(frozen=True)
class FixedCost:
    """Per step: torch calls of the forward pass, the least they cost, and what was spent, ns."""

    calls: float
    dispatch_ns: float
    spent_ns: float

    @property
    def work(self) -> float:
        """How many times its fixed cost a call takes; 0 if there was no call."""
        return self.spent_ns / self.dispatch_ns if self.dispatch_ns else 0.0


def fixed_cost(
    phases: Phases | None,
    ops: Ops | None,
    dispatch: Dispatch | None,
    apart: Collection[OpLine] = (),
) -> FixedCost:
    """Forward and backward only: the loss has a rule of its own. ``apart``: lines of the forward
    pass that another rule is for. Abstains if something lacks."""
    if phases is None:
        raise Abstain("the phases of the clean steps were not measured")
    if ops is None:
        raise Abstain("torch calls were not counted (window ops)")
    if dispatch is None:
        raise Abstain("the fixed cost of a call was not measured on this machine")
    mine = [line for line in ops.lines if line.phase == "forward" and line not in apart]
    return cost_of(mine, phases, ops, dispatch)


def fixed_cost_of_small(
    phases: Phases, ops: Ops, dispatch: Dispatch, apart: Collection[OpLine] = ()
) -> FixedCost:
    """The same of the lines alone whose own calls may be nothing but fixed costs. The average of
    all tells nothing of either where a loop of small calls stands beside a few large ones."""
    small = [
        line
        for line in ops.lines
        if line.phase == "forward"
        and line not in apart
        and cost_of([line], phases, ops, dispatch).work <= FIXED_COST_FACTOR
    ]
    return cost_of(small, phases, ops, dispatch)


def cost_of(mine: Sequence[OpLine], phases: Phases, ops: Ops, dispatch: Dispatch) -> FixedCost:
    """Of these lines: a phase's time goes by that of its lines, backward's by that of the calls
    that record gradients, whatever their phase."""
    spent = phases.wall_ns.get("backward", 0.0) * _recorded(mine) / (_recorded(ops.lines) or 1.0)
    for phase in {line.phase for line in mine}:
        all_of_it = sum(line.elapsed_ns for line in ops.lines if line.phase == phase) or 1.0
        its = sum(line.elapsed_ns for line in mine if line.phase == phase)
        spent += phases.wall_ns.get(phase, 0.0) * its / all_of_it
    return FixedCost(
        calls=sum(line.calls for line in mine),
        dispatch_ns=sum(_cost(line, dispatch) for line in mine),
        spent_ns=spent,
    )


def _cost(line: OpLine, dispatch: Dispatch) -> float:
    plain = line.calls - line.grad_calls
    grad_op_ns = min(dispatch.grad_op_ns, GRAD_CALL_MOST * dispatch.op_ns)
    return plain * dispatch.op_ns + line.grad_calls * grad_op_ns


def _recorded(lines: Sequence[OpLine]) -> float:
    """Time of the calls that record gradients: backward's time goes by it."""
    return sum(line.elapsed_ns * line.grad_calls / line.calls for line in lines if line.calls)
