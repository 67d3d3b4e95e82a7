"""Host waits for the device, and the device then waits for the host

## What it measures
Synchronisations in the step (`.item()`, `.cpu()`, `.numpy()`, `print(loss)`, `float(t)`,
`if tensor:`), by line, with the time for which the device is idle *after* each.

## Why it is slow
While the host waits it launches nothing; when the device is done it has nothing queued, and idles
until the host has issued work again. A synchronisation that only waits for a busy device, with no
idle time after it, costs nothing and is not reported.

## What to do
Keep running sums on the device and read them every N steps; log from there.

## How the gain is computed
High end: all idle time that follows. Low end: half of what the host spent waiting (which is what is
left when launching is the bottleneck), if every other value must be read where it is.

## When this advice is wrong
A value that decides what is computed next (early stopping inside a step, beam search) must be
read. On a CPU nothing is asynchronous and `.item()` is free: the rule then abstains.
"""

from __future__ import annotations

from tdiag.evidence.device import DeviceTime, Sync, Syncs
from tdiag.evidence.kinds import Budget, SyncLines
from tdiag.evidence.store import Evidence
from tdiag.model.diagnosis import Fix
from tdiag.rules.base import Found, where
from tdiag.rules.device_waits import asked_for, busiest, drains, waits
from tdiag.rules.examples import budget, device_time, sync
from tdiag.units import duration, percent

CODE = "TD401"
NAME = "sync-drains-device"
CLASS = "sync"

# Reading a value every so many steps is the usual choice, and leaves two percent of the cost.
LOG_EVERY = 50


def check(
    budget: Budget, syncs: Syncs, device: DeviceTime, sync_lines: SyncLines | None
) -> Found | None:
    dear = drains(budget, device, _not_asked_for(syncs), busiest(sync_lines))
    if dear is None:
        return None
    return Found(
        summary=(
            f"{dear.times:.1f} synchronisations a step{where(dear.at)} leave the device idle for"
            f" {duration(dear.idle)}, {percent(dear.idle / budget.step_ns)} of the step."
        ),
        evidence=dear.measures(),
        fix=Fix(
            f"Keep the value on the device{where(dear.at)} (total += loss.detach()) and read it"
            f" every {LOG_EVERY} steps: `if step % {LOG_EVERY} == 0: log(total.item())`.",
            "safe",
        ),
        gain=dear.gain(),
        at=dear.at,
    )


def _not_asked_for(syncs: Syncs) -> list[Sync]:
    return [sync for sync in waits(syncs) if not asked_for(sync)]


def fires() -> Evidence:
    step = budget(device=True, compute=20, sync=4, launch=1)
    return Evidence().add(step, Syncs(syncs=(sync(),)), device_time(26))


def clear() -> Evidence:
    """`loss.item()` that only waits for a busy device: work is queued, no idle time follows."""
    free = sync(idle_after_ns=0.0)
    return Evidence().add(budget(device=True, compute=25), Syncs(syncs=(free,)), device_time(26))
