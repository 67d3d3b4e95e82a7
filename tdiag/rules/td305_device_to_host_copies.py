"""Results are copied to the host every step

## What it measures
Device-to-host copies per step: bytes, time without concurrent compute, and the line.

## Why it is slow
The copy waits for its source, and without pinned memory the host waits for the copy. Meanwhile
nothing new is launched.

## What to do
Keep results on the device (`.detach()`), reduce them there, and copy every N steps.

## How the gain is computed
High end: all copy time that no compute overlaps, and what the host does with the copied values
before it launches more. Low end: three quarters of the copies, if every fourth step still copies.

## When this advice is wrong
Outputs that the run must store (predictions) have to be copied: on a side stream, into pinned
memory.
"""

from __future__ import annotations

from tdiag.evidence.device import DeviceTime, Transfers
from tdiag.evidence.replay import AFTER_D2H
from tdiag.evidence.steps import Budget
from tdiag.evidence.store import Evidence
from tdiag.evidence.torch_ops import Ops
from tdiag.model.diagnosis import Fix
from tdiag.model.place import Place
from tdiag.rules.base import Found, Gain, where
from tdiag.rules.device_waits import copy_measures, exposed, merged
from tdiag.rules.examples import MS, budget, copy, device_time, op_line, ops
from tdiag.rules.thresholds import RARER_LOW_FRAC
from tdiag.units import per_step, plural

CODE = "TD305"
NAME = "device-to-host-copies"
CLASS = "h2d"
UNTRIED = "some steps need the values, and which is unknown"

# Tensor methods that return a copy in host memory.
TO_HOST = frozenset({"cpu", "numpy", "tolist"})


def check(
    budget: Budget, transfers: Transfers, device: DeviceTime, ops: Ops | None
) -> Found | None:
    copies = [copy for copy in transfers.copies if copy.direction == "d2h"]
    cost = exposed(copies, budget, device)
    if not cost:
        return None
    copy = merged(copies)
    at = copy.at or _line(ops)
    return Found(
        summary=(
            f"The device waits {per_step(cost, budget.step_ns)} for"
            f" {plural(copy.count, 'copy', 'copies')} to the host{where(at)}."
        ),
        evidence=copy_measures(copy),
        fix=Fix(
            f"Keep the result on the device{where(at)} (.detach()) and reduce it there. Copy it"
            " once in many steps.",
            "safe",
            action="Copy results to the host less often",
        ),
        gain=Gain(
            cost * RARER_LOW_FRAC,
            cost,
            "high end: no copy in the step, nor what the host does with its values; low end: a"
            " quarter as many.",
            ("d2h", "sync"),
            {f"d2h {x.memory}": 1 - RARER_LOW_FRAC for x in copies},
            {AFTER_D2H: 0.0}
            | {f"{what} {x.memory}": 0.0 for x in copies for what in ("d2h", "wait d2h")},
        ),
        at=at,
    )


def _line(ops: Ops | None) -> Place | None:
    """The line that spends most time on copies to the host."""
    lines = [line for line in ops.lines if TO_HOST & line.conversions.keys()] if ops else []
    return max(lines, key=lambda line: line.elapsed_ns).at if lines else None


def fires() -> Evidence:
    outputs = copy(direction="d2h", at=None, device_ns=3 * MS, exposed_ns=3 * MS)
    step = budget(device=True, compute=20, d2h=3)
    line = op_line(72, "optimizer", 2, conversions={"cpu": 1.0})
    return Evidence().add(step, Transfers(copies=(outputs,)), device_time(23), ops(line))


def clear() -> Evidence:
    """Only the batch is copied, to the device."""
    step = budget(device=True, compute=20, h2d=8)
    return Evidence().add(step, Transfers(copies=(copy(),)), device_time(28))
