"""Pinned copies that nothing overlaps

## What it measures
Host-to-device copies out of pinned memory, and the part of their time with no compute running.

## Why it is slow
A copy in the stream of the compute waits for it and is waited for; without `non_blocking=True` the
host waits as well, and cannot issue the step that follows.

## What to do
Copy with `non_blocking=True`, and copy the next batch on a side stream while this one is computed.

## How the gain is computed
High end: the copies are hidden behind compute. Low end: the host no longer blocks for longer than
the copy itself takes.

## When this advice is wrong
After `non_blocking=True` the host must not overwrite the batch before the copy is done.
"""

from __future__ import annotations

from tdiag.evidence.device import DeviceTime, Transfers
from tdiag.evidence.kinds import Budget
from tdiag.evidence.store import Evidence
from tdiag.model.diagnosis import Fix
from tdiag.rules.base import Found, Gain, where
from tdiag.rules.device_waits import copy_measures, exposed, merged
from tdiag.rules.examples import MS, budget, copy, device_time
from tdiag.rules.measures import ns
from tdiag.units import duration, percent

CODE = "TD302"
NAME = "pinned-copies-not-overlapped"
CLASS = "h2d"


def check(budget: Budget, transfers: Transfers, device: DeviceTime) -> Found | None:
    copies = [x for x in transfers.copies if x.direction == "h2d" and x.memory == "pinned"]
    cost = exposed(copies, budget, device)
    if not cost:
        return None
    copy = merged(copies)
    beyond = max(0.0, copy.host_blocked_ns - copy.device_ns) * budget.step_ns / device.step_ns
    return Found(
        summary=(
            f"Copies from pinned memory{where(copy.at)} run with no compute beside them for"
            f" {duration(cost)} a step ({percent(cost / budget.step_ns)})."
        ),
        evidence=(
            *copy_measures(copy),
            ns("host blocked in the copies", copy.host_blocked_ns, "trace"),
        ),
        fix=Fix(
            f"batch.to(device, non_blocking=True){where(copy.at)}, and copy the next batch on a"
            " torch.cuda.Stream of its own while this one is computed.",
            "review",
            "non_blocking",
        ),
        gain=Gain(
            min(beyond, cost),
            cost,
            "high end: the copies run beside compute; low end: only the host is freed.",
            ("h2d",),
            high_cuts={"h2d pinned": 0.0, "wait h2d pinned": 0.0},
        ),
        at=copy.at,
    )


def fires() -> Evidence:
    pinned = copy(memory="pinned", device_ns=3 * MS, exposed_ns=3 * MS, host_blocked_ns=3.1 * MS)
    step = budget(device=True, compute=30, h2d=3)
    return Evidence().add(step, Transfers(copies=(pinned,)), device_time(33))


def clear() -> Evidence:
    """The same copy on a side stream."""
    hidden = copy(memory="pinned", device_ns=3 * MS, exposed_ns=0.0, host_blocked_ns=20_000.0)
    step = budget(device=True, compute=30)
    return Evidence().add(step, Transfers(copies=(hidden,)), device_time(30))
