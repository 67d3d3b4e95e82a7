"""The loop itself asks for synchronisation

## What it measures
Device-wide synchronisation (`torch.cuda.synchronize()`) in the step, with the time for which the
device is idle after each.

## Why it is slow
The device must finish everything, and then waits until the host has issued work again.

## What to do
Remove it from the loop; measure time with CUDA events, or with `tdiag run`.

## How the gain is computed
High end: all idle time that follows. Low end: half of what the host spent waiting.

## When this advice is wrong
A profiler synchronises where it starts and stops: without step boundaries the rule abstains.
Around a timing of a few steps synchronising is right.
"""

from __future__ import annotations

from tdiag.evidence.device import DeviceTime, Syncs, TracedSteps
from tdiag.evidence.kinds import Budget
from tdiag.evidence.store import Evidence
from tdiag.model.diagnosis import Fix
from tdiag.rules.base import Abstain, Found, where
from tdiag.rules.device_waits import asked_for, drains, waits
from tdiag.rules.examples import budget, device_time, sync, traced
from tdiag.units import duration, percent

CODE = "TD403"
NAME = "synchronize-in-loop"
CLASS = "sync"


def check(budget: Budget, syncs: Syncs, device: DeviceTime, traced: TracedSteps) -> Found | None:
    if traced.found_by == "span":
        raise Abstain(
            "the trace shows no steps, so the loop's synchronisation cannot be told from the"
            " profiler's own where it starts and stops"
        )
    dear = drains(budget, device, [sync for sync in waits(syncs) if asked_for(sync)])
    if dear is None:
        return None
    names = ", ".join(sorted({sync.name for sync in dear.syncs}))
    return Found(
        summary=(
            f"{dear.times:.1f} times a step{where(dear.at)} the script itself makes the device"
            f" finish ({names}); it then idles for {duration(dear.idle)},"
            f" {percent(dear.idle / budget.step_ns)} of the step."
        ),
        evidence=dear.measures(),
        fix=Fix(
            f"Remove torch.cuda.synchronize(){where(dear.at)} from the loop; take times with CUDA"
            " events (torch.cuda.Event(enable_timing=True)).",
            "safe",
        ),
        gain=dear.gain(),
        at=dear.at,
    )


def fires() -> Evidence:
    asked = sync(name="cudaDeviceSynchronize")
    step = budget(device=True, compute=20, sync=4, launch=1)
    return Evidence().add(step, Syncs(syncs=(asked,)), device_time(26), traced(26))


def clear() -> Evidence:
    """One wait at the end of the step for a value, which is not this rule's."""
    step = budget(device=True, compute=20, sync=4, launch=1)
    return Evidence().add(step, Syncs(syncs=(sync(),)), device_time(26), traced(26))
