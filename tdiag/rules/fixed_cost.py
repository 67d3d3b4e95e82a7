"""What the calls of forward and backward cost before they do any work."""

from __future__ import annotations

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


def fixed_cost(phases: Phases | None, ops: Ops | None, dispatch: Dispatch | None) -> FixedCost:
    """Forward and backward only: the loss has a rule of its own. Abstains if something lacks."""
    if phases is None:
        raise Abstain("the phases of the clean steps were not measured")
    if ops is None:
        raise Abstain("torch calls were not counted (window ops)")
    if dispatch is None:
        raise Abstain("the fixed cost of a call was not measured on this machine")
    lines = [line for line in ops.lines if line.phase == "forward"]
    share = _recorded(lines) / (_recorded(list(ops.lines)) or 1.0)
    return FixedCost(
        calls=sum(line.calls for line in lines),
        dispatch_ns=sum(_cost(line, dispatch) for line in lines),
        spent_ns=_spent(phases.wall_ns, share),
    )


def _spent(ns: dict[str, float], share: float) -> float:
    return ns.get("forward", 0.0) + share * ns.get("backward", 0.0)


def _cost(line: OpLine, dispatch: Dispatch) -> float:
    plain = line.calls - line.grad_calls
    grad_op_ns = min(dispatch.grad_op_ns, GRAD_CALL_MOST * dispatch.op_ns)
    return plain * dispatch.op_ns + line.grad_calls * grad_op_ns


def _recorded(lines: list[OpLine]) -> float:
    """Time of the calls that record gradients: backward's time goes by it."""
    return sum(line.elapsed_ns * line.grad_calls / line.calls for line in lines if line.calls)
