"""The step is spent computing, efficiently

## What it measures
With a device: the share of the step in which it runs compute kernels. On a CPU: the share of the
step in forward, loss, backward and optimizer, and how much longer calls take there than their fixed
cost.

## Why it is slow
It is not. This is what a healthy training looks like: the remaining time is the model's own
arithmetic.

## What to do
Nothing needs fixing. To go faster, use a smaller or cheaper model, lower precision, or faster or
more devices. At a price per hour, the cost of a step is its time.

## How the gain is computed
No gain is claimed.

## When this advice is wrong
It is reported only if no rule found 5 % of the step to save, and if the step's work reaches 40 % of
what the machine can do (docs/roofline.md). A rule that could not be checked might have found
something.
"""

from __future__ import annotations

from tdiag.evidence.device import DeviceTime
from tdiag.evidence.machine import System
from tdiag.evidence.steps import Budget, Phases
from tdiag.evidence.store import Evidence
from tdiag.evidence.torch_ops import Dispatch, Ops
from tdiag.model.diagnosis import Fix, Measure
from tdiag.rules.base import COMPUTE, Abstain, Found, count, frac, held
from tdiag.rules.examples import MS, budget, device_time, op_line, ops, phases, roofline
from tdiag.rules.fixed_cost import FIXED_COST_FACTOR, fixed_cost
from tdiag.rules.thresholds import HEALTHY_COMPUTE_FRAC
from tdiag.units import duration, percent

CODE = "TD605"
NAME = "compute-bound-and-efficient"
CLASS = "compute"
ONLY_IF = "healthy"


def check(
    budget: Budget,
    phases: Phases | None,
    ops: Ops | None,
    dispatch: Dispatch | None,
    device: DeviceTime | None,
    system: System | None,
) -> Found | None:
    if budget.has_device:
        if device is None:
            raise Abstain("no device activity was traced")
        share, evidence = device.busy_frac, [frac("device busy", device.busy_frac, "trace")]
    else:
        share = held(budget, *COMPUTE) / budget.step_ns
        per_call, evidence = _work_per_call(phases, ops, dispatch)
        if per_call <= FIXED_COST_FACTOR:
            return None
    if share < HEALTHY_COMPUTE_FRAC:
        return None
    if system is not None and system.cores_used is not None and not budget.has_device:
        evidence.append(count("cores used", system.cores_used, "system", "cores"))
    return Found(
        summary=(
            f"{percent(share)} of the {duration(budget.step_ns)} step is the model's own compute:"
            " the training is compute-bound and healthy."
        ),
        evidence=(frac("compute, share of the step", share, "budget"), *evidence),
        fix=Fix(
            "Nothing to fix. To go faster, use a cheaper model, lower precision or faster"
            " hardware.",
            "safe",
            action="Nothing to fix",
        ),
    )


def _work_per_call(
    phases: Phases | None, ops: Ops | None, dispatch: Dispatch | None
) -> tuple[float, list[Measure]]:
    """Time of the forward calls and their backward ÷ the calls' fixed cost."""
    fixed = fixed_cost(phases, ops, dispatch)
    if not fixed.dispatch_ns:
        raise Abstain("no torch calls were counted in the forward pass")
    name = "forward and backward time ÷ fixed cost of its calls"
    return fixed.work, [count(name, fixed.work, "ops")]


def fires() -> Evidence:
    layers = ops(op_line(20, "forward", 12, grad_calls=12.0, elapsed_ns=40 * MS))
    step = budget(data_wait_cpu=1, forward=40, loss=1, backward=80, optimizer=6, other=2)
    clean = phases(forward=40, loss=1, backward=80, optimizer=6)
    dispatch = Dispatch(op_ns=1500, grad_op_ns=7000)
    return Evidence().add(step, clean, layers, dispatch, *roofline(best_ms=90))


def clear() -> Evidence:
    """A device that idles for two fifths of the step."""
    step = budget(device=True, compute=60, launch=40)
    return Evidence().add(step, device_time(100, busy_frac=0.6))
