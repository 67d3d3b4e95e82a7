"""Communication that nothing overlaps

## What it measures
Time of collectives (all-reduce and the like) per step during which no compute kernel runs.

## Why it is slow
Gradients could be sent while earlier layers' backward still computes; what is sent after it, or
waited for, makes every rank idle.

## What to do
Larger overlap (`gradient_as_bucket_view=True`, `bucket_cap_mb`), fewer collectives (`no_sync()`
while accumulating), smaller ones (a bf16 compression hook).

## How the gain is computed
High end: all exposed communication; where all ranks' traces are at hand, of each collective only
what it lasts on the rank that comes last to it. Low end: nothing, if the time is a wait for a
slower rank.

## When this advice is wrong
A collective also lasts as long as the slowest rank takes to arrive: look for a straggler first.
"""

from __future__ import annotations

from tdiag.diagnose.model import Fix
from tdiag.evidence.device import Communication, DeviceTime, Ranks
from tdiag.evidence.kinds import Budget
from tdiag.evidence.store import Evidence
from tdiag.rules.base import Found, Gain
from tdiag.rules.examples import MS, budget, device_time
from tdiag.rules.measures import count, ns
from tdiag.units import duration, percent

CODE = "TD903"
NAME = "exposed-communication"
CLASS = "comm"
AFTER = {
    "TD902": "waiting for a late rank looks like communication, and no bucket size shortens it",
    "TD906": "waiting for late ranks looks like communication, and no bucket size shortens it",
}


def check(
    budget: Budget, communication: Communication, device: DeviceTime, ranks: Ranks | None
) -> Found | None:
    exposed = communication.exposed_ns
    if ranks is not None and ranks.shortest_ns is not None:
        exposed = min(exposed, ranks.shortest_ns)  # the rest is waiting: TD902, TD906
    if not exposed:
        return None
    cost = exposed * budget.step_ns / device.step_ns
    hidden = 1 - communication.exposed_ns / communication.total_ns
    return Found(
        summary=(
            f"{duration(cost)} of communication a step ({percent(cost / budget.step_ns)}) run with"
            f" no compute beside them; {percent(hidden)} of all communication is hidden."
        ),
        evidence=(
            ns("exposed communication", exposed, "trace"),
            ns("communication", communication.total_ns, "trace"),
            count("collectives", communication.count, "trace", "per_step"),
        ),
        fix=Fix(
            "DistributedDataParallel(model, gradient_as_bucket_view=True, bucket_cap_mb=…) with"
            " buckets tried smaller and larger; no_sync() while accumulating; a bf16 hook.",
            "review",
        ),
        gain=Gain(
            0.0,
            cost,
            "high end: all of it overlaps backward; low end: it is a wait for a slower rank.",
            ("comm",),
            high_cuts={"comm": 1 - exposed / communication.exposed_ns},
        ),
    )


def fires() -> Evidence:
    found = Communication(total_ns=30 * MS, exposed_ns=12 * MS, count=14.0)
    return Evidence().add(budget(device=True, compute=60, comm=12), found, device_time(72))


def clear() -> Evidence:
    """As much communication, under the backward pass."""
    found = Communication(total_ns=30 * MS, exposed_ns=0.0, count=14.0)
    return Evidence().add(budget(device=True, compute=60), found, device_time(60))
