"""Results are copied from the device in every step

## What it measures
Device-to-host copies per step: bytes, time with no compute running, and the line.

## Why it is slow
The copy waits for what it reads, and without pinned memory the host waits with it; meanwhile
nothing new is launched.

## What to do
Keep results on the device (`.detach()`), reduce them there, and copy every N steps.

## How the gain is computed
High end: all copy time that no compute overlaps. Low end: half, if every second step still copies.

## When this advice is wrong
Outputs that are the point of the run (predictions to be stored) have to be copied: on a side
stream, into pinned memory.
"""

from __future__ import annotations

from tdiag.evidence.device import DeviceTime, Transfers
from tdiag.evidence.kinds import Budget, Ops
from tdiag.evidence.store import Evidence
from tdiag.model.diagnosis import Fix
from tdiag.model.place import Place
from tdiag.rules.base import Found, Gain, where
from tdiag.rules.device_waits import copy_measures, exposed, merged
from tdiag.rules.examples import MS, budget, copy, device_time, op_line, ops
from tdiag.units import duration, percent, plural

CODE = "TD305"
NAME = "device-to-host-copies"
CLASS = "h2d"

# Copying every second step is the mildest change worth making.
RARER_LOW_FRAC = 0.5
# Calls that give a copy in host memory (torch's documentation of each).
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
            f"Copying to the host{where(at)} ({plural(copy.count, 'copy', 'copies')} a step) holds"
            f" up the device for {duration(cost)} a step ({percent(cost / budget.step_ns)})."
        ),
        evidence=copy_measures(copy),
        fix=Fix(
            f"Keep the result on the device{where(at)} (.detach()), reduce it there, and copy"
            " once in many steps.",
            "safe",
        ),
        gain=Gain(
            cost * RARER_LOW_FRAC,
            cost,
            "high end: no copy in the step; low end: half as many.",
            ("d2h",),
            {f"d2h {x.memory}": 1 - RARER_LOW_FRAC for x in copies},
            {f"d2h {x.memory}": 0.0 for x in copies},
        ),
        at=at,
    )


def _line(ops: Ops | None) -> Place | None:
    """The line that takes most values to the host, as counted."""
    lines = [line for line in ops.lines if TO_HOST & line.conversions.keys()] if ops else []
    return max(lines, key=lambda line: line.elapsed_ns).at if lines else None


def fires() -> Evidence:
    outputs = copy(direction="d2h", at=None, device_ns=3 * MS, exposed_ns=3 * MS)
    step = budget(device=True, compute=20, d2h=3)
    line = op_line(72, "optimizer", 2, conversions={"cpu": 1.0})
    return Evidence().add(step, Transfers(copies=(outputs,)), device_time(23), ops(line))


def clear() -> Evidence:
    """Only the batch travels, and to the device."""
    step = budget(device=True, compute=20, h2d=8)
    return Evidence().add(step, Transfers(copies=(copy(),)), device_time(28))
