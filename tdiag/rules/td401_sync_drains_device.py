"""Synchronisations leave the device idle

## What it measures
Synchronisations in the step (`.item()`, `.cpu()`, `.numpy()`, `print(loss)`, `float(t)`,
`if tensor:`, `x[mask]`, copies) by line, op and annotation, and how long the device idles *after*
each.

## Why it is slow
While the host waits, it launches nothing. When the device is done, its queue is empty, and it idles
until the host has launched more work. A synchronisation without idle time after it costs nothing
and is not reported.

## What to do
Keep running sums on the device, and read and log them every N steps. Copy with `non_blocking=True`.
Use `torch.where` instead of branches on values and shapes that depend on values.

## How the gain is computed
High end: all idle time that follows. Low end: half of the time that the host waits, if every other
value must be read in its step.

## When this advice is wrong
A value that decides what is computed next (early stopping in a step, beam search) must be read. On
a CPU nothing is asynchronous and `.item()` is free: the rule abstains.
"""

from __future__ import annotations

import re

from tdiag.evidence.device import DeviceTime, Sync, SyncLines, Syncs
from tdiag.evidence.steps import Budget
from tdiag.evidence.store import Evidence
from tdiag.model.diagnosis import Fix
from tdiag.rules.base import Found, where
from tdiag.rules.device_waits import asked_for, busiest, drains, waits
from tdiag.rules.examples import budget, device_time, sync
from tdiag.rules.thresholds import LOG_EVERY
from tdiag.units import per_step, plural

CODE = "TD401"
NAME = "sync-drains-device"
CLASS = "sync"
UNTRIED = "some steps need the values, and which is unknown; `ceiling.reads` bounds the gain"


_COPIES = re.compile(r"^aten::(_to_copy|to|copy_|tensor|lift_fresh|pin_memory)( |$)")
_SIZES = re.compile(r"nonzero|masked_select|unique|repeat_interleave|bincount|(index|index_put_) >")
_TRUTH = re.compile(r"is_nonzero|equal|allclose")


def check(
    budget: Budget, syncs: Syncs, device: DeviceTime, sync_lines: SyncLines | None
) -> Found | None:
    values = [sync for sync in waits(syncs) if not asked_for(sync)]
    found = drains(budget, device, values, busiest(sync_lines))
    if found is None:
        return None
    worst = max(found.syncs, key=lambda sync: sync.idle_after_ns)
    return Found(
        summary=(
            f"The device idles {per_step(found.idle, budget.step_ns)} after"
            f" {plural(round(found.times, 1), 'synchronisation')}{where(found.at)}{_of(worst)}."
        ),
        evidence=found.measures(),
        fix=_fix(worst.op, where(found.at)),
        gain=found.gain(),
        at=found.at,
    )


def _of(sync: Sync) -> str:
    """The op and the annotation that synchronise most."""
    op = f", mostly in {sync.op}" if sync.op else ""
    return f"{op} ({sync.within})" if sync.within else op


def _fix(op: str, place: str) -> Fix:
    """By what the op needs from the device."""
    if _COPIES.search(op):
        return Fix(
            f"Copy{place} with non_blocking=True, from and to pinned memory, and synchronise only"
            " when the copy is used. Make constants on the device (device=...).",
            "review",
            action="Copy without waiting",
        )
    if _SIZES.search(op):
        return Fix(
            f"The size of the result{place} depends on values that only the device knows, so the"
            " host waits for them. Keep a fixed shape: multiply by the mask, or use torch.where.",
            "review",
            action="Keep shapes independent of values",
        )
    if _TRUTH.search(op):
        return Fix(
            f"`if tensor:`, `assert` or `while`{place} waits for the value. Compute both sides and"
            f" choose with torch.where, or check every {LOG_EVERY} steps.",
            "review",
            action="Do not branch on values of the device",
        )
    return Fix(
        f"Keep the value on the device{place} and read it every {LOG_EVERY} steps.",
        "safe",
        action=f"Read the value every {LOG_EVERY} steps",
        code=(
            "total = torch.zeros((), device=device)  # before the loop\n"
            "total += loss.detach()  # instead of loss.item()\n"
            f"if step % {LOG_EVERY} == 0:\n"
            f"    print(total.item() / {LOG_EVERY})\n"
            "    total.zero_()"
        ),
    )


def fires() -> Evidence:
    step = budget(device=True, compute=20, sync=4, launch=1)
    return Evidence().add(step, Syncs(syncs=(sync(),)), device_time(26))


def clear() -> Evidence:
    """`loss.item()` with more work queued: no idle time follows."""
    free = sync(idle_after_ns=0.0)
    return Evidence().add(budget(device=True, compute=25), Syncs(syncs=(free,)), device_time(26))
