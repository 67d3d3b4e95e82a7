"""The loss adds a sum of squares of the parameters

## What it measures
Calls whose result depends on parameters alone, is the sum of their squares (or the square of a
norm), and is added to what comes from the batch: by hand, or for all parameters joined.

## Why it is slow
The sum reads all weights, its backward reads them again and writes a gradient as large as the
weights, which is then added to the other one. The optimizer, which goes through all weights and
gradients anyway, adds the same term in passing.

## What to do
`weight_decay` of the optimizer: the gradient of c · Σ w² is 2c · w, so with SGD and Adam
`weight_decay=2*c` gives the same gradients. AdamW's is another method, which does not scale with
the gradients. Parameters without a penalty (biases, norms) belong in a group with `weight_decay=0`.

## How the gain is computed
High end: the time of these calls and their backward, by its time by line. Low end: the backward
alone, as if the optimizer's weight decay took as long as the calls. If backward was not measured by
line: the calls' time, times what they cost with their backward and without what the weight decay
costs, at the low and high end of the measurement of the thresholds.

## When this advice is wrong
If the penalty is read, for example to be logged: compute it then, under `torch.no_grad()`.
"""

from __future__ import annotations

from tdiag.evidence.steps import Budget, Phases
from tdiag.evidence.store import Evidence
from tdiag.evidence.torch_ops import Ops
from tdiag.model.diagnosis import Fix
from tdiag.model.threshold import Threshold
from tdiag.rules.base import Found, Gain, count, ns, where
from tdiag.rules.call_parts import PartOfCalls, part_of_calls
from tdiag.rules.examples import at, budget, op_line, ops, phases
from tdiag.units import duration, percent

CODE = "TD748"
NAME = "penalty-in-the-loss"
CLASS = "compute"
UNTRIED = "the factor of the penalty is known to the script alone"
BY_WORK = True

_MEASURED = (
    "Measured, with backward and less weight decay, four sizes in three ways, one core, torch 2.13:"
)
WITH_BACKWARD_LOW = Threshold(
    2.1, "times the calls", f"{_MEASURED} the least (benchmarks/rule_constants.py td748)."
)
WITH_BACKWARD_HIGH = Threshold(
    11.4, "times the calls", f"{_MEASURED} the most (benchmarks/rule_constants.py td748)."
)


def check(budget: Budget, phases: Phases, ops: Ops) -> Found | None:
    part = part_of_calls(phases, ops, None, lambda x: x.penalty_ns)
    if part is None:
        return None
    total, at = part.ns, part.lines[0].at
    return Found(
        summary=(
            f"The squares of parameters are summed{where(at)} and added to the loss:"
            f" {duration(total)} ({percent(total / budget.step_ns)} of the step), without their"
            " backward."
        ),
        evidence=(
            ns("calls for the penalty", total, "baseline"),
            count("torch calls of these lines", part.calls, "ops", "per_step"),
            ns("all of backward", part.all_backward_ns, "baseline"),
        ),
        fix=Fix(
            f"Remove the penalty{where(at)} and give the optimizer weight_decay, twice the"
            " penalty's factor: with SGD and Adam the gradients are the same.",
            "review",
            action="Use the optimizer's weight_decay",
            code="optimizer = torch.optim.SGD(model.parameters(), lr=lr, weight_decay=2 * factor)",
        ),
        gain=_gain(part),
        at=at,
    )


def _gain(part: PartOfCalls) -> Gain:
    total = part.ns
    if part.share.measured:
        why = f"high end: the {duration(total)} and their backward; low end: this backward alone."
        return Gain(part.least_backward_ns, total + part.most_backward_ns, why, part.phases)
    return Gain(
        total * WITH_BACKWARD_LOW,
        total * WITH_BACKWARD_HIGH,
        f"with its backward the penalty costs {WITH_BACKWARD_LOW} to {WITH_BACKWARD_HIGH} times"
        f" these {duration(total)}.",
        part.phases,
    )


def fires() -> Evidence:
    return _training(penalty=8e6)


def clear() -> Evidence:
    """The optimizer's own weight decay."""
    return _training(penalty=0.0)


def _training(penalty: float) -> Evidence:
    line = op_line(31, "loss", 3, grad_calls=3.0, elapsed_ns=8e6, penalty_ns=penalty, at=at(31))
    rest = op_line(29, "forward", 6, grad_calls=6.0, elapsed_ns=20e6)
    step = budget(forward=20, loss=8, backward=60, optimizer=8)
    clean = phases(forward=20, loss=8, backward=60, optimizer=8)
    return Evidence().add(step, clean, ops(line, rest))
