"""Pinned copies do not overlap computation

## What it measures
Host-to-device copies from pinned memory: their time without concurrent compute.

## Why it is slow
A copy in the compute stream waits for the compute, and the compute waits for it. Without
`non_blocking=True` the host also waits and cannot launch the next step.

## What to do
Copy with `non_blocking=True`, and copy the next batch on a side stream during the compute.

## How the gain is computed
High end: compute hides the copies. Low end: the host no longer blocks beyond the copy's own time.

## When this advice is wrong
After `non_blocking=True` the host must not overwrite the batch before the copy is done.
"""

from __future__ import annotations

from tdiag.evidence.device import DeviceTime, Kernels, Transfers
from tdiag.evidence.steps import Budget
from tdiag.evidence.store import Evidence
from tdiag.model.diagnosis import Fix
from tdiag.rules.base import Found, Gain, where
from tdiag.rules.device_waits import copy_measures, exposed, merged
from tdiag.rules.examples import MS, budget, copy, device_time, family, kernels
from tdiag.rules.snippets import batches_ahead
from tdiag.units import per_step

CODE = "TD302"
NAME = "pinned-copies-not-overlapped"
CLASS = "h2d"
AFTER = {"TD306": "data that stays on the device is not copied"}


def check(
    budget: Budget, transfers: Transfers, device: DeviceTime, kernels: Kernels
) -> Found | None:
    """Kernels are required: without compute there is nothing that the copies could overlap."""
    copies = [x for x in transfers.copies if x.direction == "h2d" and x.memory == "pinned"]
    cost = exposed(copies, budget, device)
    if not cost:
        return None
    copy = merged(copies)
    beyond = max(0.0, copy.host_blocked_ns - copy.device_ns) * budget.step_ns / device.step_ns
    return Found(
        summary=(
            f"The device waits {per_step(cost, budget.step_ns)} for copies from pinned"
            f" memory{where(copy.at)} that no compute overlaps."
        ),
        evidence=copy_measures(copy, host=True),
        fix=Fix(
            f"Use batch.to(device, non_blocking=True){where(copy.at)}. Copy the next batch on its"
            " own torch.cuda.Stream during the compute.",
            "review",
            "copies.non_blocking" if beyond else None,
            action="Copy the next batch during the compute",
            code=batches_ahead(),
        ),
        gain=Gain(
            min(beyond, cost),
            cost,
            "high end: compute hides the copies; low end: only the host no longer waits.",
            ("h2d",),
            high_cuts={"h2d pinned": 0.0, "wait h2d pinned": 0.0},
        ),
        at=copy.at,
    )


def fires() -> Evidence:
    pinned = copy(memory="pinned", device_ns=3 * MS, exposed_ns=3 * MS, host_blocked_ns=3.1 * MS)
    step = budget(device=True, compute=30, h2d=3)
    return Evidence().add(step, Transfers(copies=(pinned,)), device_time(33), _work())


def clear() -> Evidence:
    """The same copy on a side stream."""
    hidden = copy(memory="pinned", device_ns=3 * MS, exposed_ns=0.0, host_blocked_ns=20_000.0)
    step = budget(device=True, compute=30)
    return Evidence().add(step, Transfers(copies=(hidden,)), device_time(30), _work())


def _work() -> Kernels:
    return kernels(family("gemm", device_ms=1))
