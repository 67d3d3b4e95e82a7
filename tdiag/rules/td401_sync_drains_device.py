"""Synchronisations leave the device idle

## What it measures
Synchronisations in the step (`.item()`, `.cpu()`, `.numpy()`, `print(loss)`, `float(t)`,
`if tensor:`) by line, and how long the device idles *after* each.

## Why it is slow
While the host waits it launches nothing. When the device is done its queue is empty, and it idles
until the host has launched more work. A synchronisation without idle time after it costs nothing
and is not reported.

## What to do
Keep running sums on the device, and read and log them every N steps.

## How the gain is computed
High end: all idle time that follows. Low end: half of the time that the host waits, if every other
value must be read in its step.

## When this advice is wrong
A value that decides what is computed next (early stopping in a step, beam search) must be read. On
a CPU nothing is asynchronous and `.item()` is free: the rule abstains.
"""

from __future__ import annotations

from tdiag.evidence.device import DeviceTime, SyncLines, Syncs
from tdiag.evidence.steps import Budget
from tdiag.evidence.store import Evidence
from tdiag.model.diagnosis import Fix
from tdiag.rules.base import Found, where
from tdiag.rules.device_waits import asked_for, busiest, drains, waits
from tdiag.rules.examples import budget, device_time, sync
from tdiag.rules.thresholds import LOG_EVERY
from tdiag.units import per_step

CODE = "TD401"
NAME = "sync-drains-device"
CLASS = "sync"


def check(
    budget: Budget, syncs: Syncs, device: DeviceTime, sync_lines: SyncLines | None
) -> Found | None:
    values = [sync for sync in waits(syncs) if not asked_for(sync)]
    found = drains(budget, device, values, busiest(sync_lines))
    if found is None:
        return None
    return Found(
        summary=(
            f"The device idles {per_step(found.idle, budget.step_ns)} after {found.times:.1f}"
            f" synchronisations{where(found.at)}."
        ),
        evidence=found.measures(),
        fix=Fix(
            f"Keep the value on the device{where(found.at)} and read it every {LOG_EVERY} steps.",
            "safe",
            action=f"Read the value every {LOG_EVERY} steps",
            code=(
                "total = torch.zeros((), device=device)  # before the loop\n"
                "total += loss.detach()  # instead of loss.item()\n"
                f"if step % {LOG_EVERY} == 0:\n"
                f"    print(total.item() / {LOG_EVERY})\n"
                "    total.zero_()"
            ),
        ),
        gain=found.gain(),
        at=found.at,
    )


def fires() -> Evidence:
    step = budget(device=True, compute=20, sync=4, launch=1)
    return Evidence().add(step, Syncs(syncs=(sync(),)), device_time(26))


def clear() -> Evidence:
    """`loss.item()` with more work queued: no idle time follows."""
    free = sync(idle_after_ns=0.0)
    return Evidence().add(budget(device=True, compute=25), Syncs(syncs=(free,)), device_time(26))
