"""The training loop synchronises the device

## What it measures
Device-wide synchronisation (`torch.cuda.synchronize()`) in the step, and how long the device idles
after each.

## Why it is slow
The device must finish everything, and then waits until the host has launched more work.

## What to do
Remove it from the loop. Measure time with CUDA events, or with `tdiag run`.

## How the gain is computed
High end: all idle time that follows. Low end: half of the time that the host waits.

## When this advice is wrong
Around a timing of a few steps, synchronising is right. A profiler synchronises when it starts and
stops: without step boundaries the rule abstains.
"""

from __future__ import annotations

from tdiag.evidence.device import DeviceTime, Syncs
from tdiag.evidence.steps import Budget, TracedSteps
from tdiag.evidence.store import Evidence
from tdiag.model.diagnosis import Fix
from tdiag.rules.base import Abstain, Found, where
from tdiag.rules.device_waits import asked_for, drains, waits
from tdiag.rules.examples import budget, device_time, sync, traced
from tdiag.units import per_step, plural

CODE = "TD403"
NAME = "synchronize-in-loop"
CLASS = "sync"


def check(budget: Budget, syncs: Syncs, device: DeviceTime, traced: TracedSteps) -> Found | None:
    if traced.found_by == "span":
        raise Abstain(
            "the trace has no step boundaries, so synchronisation by the loop and by the profiler"
            " look alike"
        )
    found = drains(budget, device, [sync for sync in waits(syncs) if asked_for(sync)])
    if found is None:
        return None
    names = ", ".join(sorted({sync.name for sync in found.syncs}))
    return Found(
        summary=(
            f"The device idles {per_step(found.idle, budget.step_ns)} after"
            f" {plural(round(found.times, 1), 'call')} of {names}{where(found.at)}."
        ),
        evidence=found.measures(),
        fix=Fix(
            f"Remove torch.cuda.synchronize(){where(found.at)} from the loop. Measure time"
            " with CUDA events.",
            "safe",
            "torch.synchronize=off",
            action="Remove torch.cuda.synchronize() from the loop",
            code=(
                "start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))\n"
                "start.record()\n"
                "...  # what is timed\n"
                "end.record()\n"
                "# after the loop:\n"
                "torch.cuda.synchronize()\n"
                "milliseconds = start.elapsed_time(end)"
            ),
        ),
        gain=found.gain(),
        at=found.at,
    )


def fires() -> Evidence:
    asked = sync(name="cudaDeviceSynchronize")
    step = budget(device=True, compute=20, sync=4, launch=1)
    return Evidence().add(step, Syncs(syncs=(asked,)), device_time(26), traced(26))


def clear() -> Evidence:
    """One wait for a value at the end of the step, which TD401 handles."""
    step = budget(device=True, compute=20, sync=4, launch=1)
    return Evidence().add(step, Syncs(syncs=(sync(),)), device_time(26), traced(26))
