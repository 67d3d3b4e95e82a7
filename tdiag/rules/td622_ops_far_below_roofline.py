"""Operations take far longer than this machine needs, for no cause that a rule knows

## What it measures
For each traced operation, the time that its arithmetic and memory traffic take at the machine's
best rates (the roofline), and the time that it took. Calls that may be nothing but fixed cost are
left out.

## Why it is slow
With unusual sizes, layouts or strides a library cannot use its fast code: a convolution with few
channels or a large dilation, a reduction over a strided dimension, a softmax over short rows. On
one core Conv1d reached 19 GFLOP/s with 10 channels and 71 with 64; a dilation of 128 halved that.

## What to do
For products and convolutions: fewer and wider layers; 16 channels instead of 10 took 1.3 times as
long for 2.6 times the arithmetic. For everything else: measure the gain of the compiler with `tdiag
try --set torch.compile`. It cannot make the library's products faster.

## How the gain is computed
No gain is predicted, because it is unknown how close another form of the operation gets to the
roofline.

## When this advice is wrong
If no other form of the operation is faster on this machine. This rule reports only if no other rule
found a fix that saves 5 % of the step.
"""

from __future__ import annotations

from collections import Counter

from msgspec.structs import replace

from tdiag.evidence.device import DeviceTime
from tdiag.evidence.roofline import OpWork, Roof, Work
from tdiag.evidence.steps import Budget
from tdiag.evidence.store import Evidence
from tdiag.model.diagnosis import Fix
from tdiag.model.threshold import MAJORITY_FRAC
from tdiag.rules.base import COMPUTE, Found, frac, held, ns, where
from tdiag.rules.examples import MS, at, budget, roofline
from tdiag.rules.fixed_cost import FIXED_COST_FACTOR, LITTLE_WORK_FRAC
from tdiag.rules.thresholds import HEALTHY_COMPUTE_FRAC
from tdiag.units import duration, percent

CODE = "TD622"
NAME = "ops-far-below-roofline"
CLASS = "compute"
ONLY_IF = "clear"


def check(budget: Budget, work: Work, roof: Roof, device: DeviceTime | None) -> Found | None:
    computing = device.busy_frac if device else held(budget, *COMPUTE) / budget.step_ns
    if computing < HEALTHY_COMPUTE_FRAC or roof.certainty < MAJORITY_FRAC:
        return None
    slow = [op for op in work.ops if _slow(op, roof)]
    spent = sum(op.spent_ns for op in slow)
    share = spent / sum(op.spent_ns for op in work.ops) if slow else 0.0
    if share < MAJORITY_FRAC:
        return None
    best = sum(roof.best_ns(op) for op in slow)
    lost: Counter[str] = Counter()
    for op in slow:
        lost[op.name] += round(op.spent_ns - roof.best_ns(op))
    worst = max(lost, key=lambda name: lost[name])
    name, place = worst.removeprefix("aten::"), work.heaviest(slow.__contains__)
    return Found(
        summary=(
            f"{percent(share)} of the traced operations' time goes to operations that reach only"
            f" {percent(best / spent)} of what this machine can do. {name}{where(place)} loses"
            f" most: {duration(lost[worst])} per step. No rule knows the cause."
        ),
        evidence=(
            frac("share of the traced operations' time", share, "trace"),
            ns("these operations, per step", spent, "trace"),
            ns("their work at best", best, "trace"),
        ),
        fix=_fix(name, where(place), library=any(op.flops for op in slow if op.name == worst)),
        at=place,
    )


def _fix(name: str, place: str, library: bool) -> Fix:
    if library:
        return Fix(
            f"Compare {name}{place} with wider layers, a smaller dilation or another layout:"
            " with its sizes the library cannot use its fast code.",
            "review",
            action="Try other sizes for the slowest operations",
        )
    return Fix(
        f"Measure what torch.compile gains for {name}{place}: tdiag try --set torch.compile.",
        "review",
        "torch.compile",
        action="Measure the slowest operations compiled",
    )


def _slow(op: OpWork, roof: Roof) -> bool:
    """Whether the operation's work is known and explains little of its time, and its calls take
    longer than their fixed cost."""
    best = roof.best_ns(op)
    fixed = 0.0 if op.device_ns is not None else FIXED_COST_FACTOR * (roof.op_ns or 0.0) * op.count
    return 0 < best < LITTLE_WORK_FRAC * op.spent_ns and op.spent_ns > fixed


def fires() -> Evidence:
    """Short rows of a softmax: 90 of 100 ms for 9 ms of memory traffic."""
    return _step_of("aten::_softmax", 9)


def clear() -> Evidence:
    """The same work at three tenths of the machine's best rates."""
    return _step_of("aten::_softmax", 27)


def _step_of(name: str, best_ms: float) -> Evidence:
    roof, work = roofline(best_ms)
    rate = roof.bytes_per_s[-1][1]
    op = replace(work.ops[0], name=name, count=1.0, flops=0.0, moved=best_ms / 1e3 * rate,
                 host_ns=90.0 * MS, at=at(42))  # fmt: skip
    step = budget(forward=30, loss=1, backward=64, optimizer=4, other=1)
    return Evidence().add(step, roof, replace(work, ops=(op,)))
