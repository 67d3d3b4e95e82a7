"""Tensor shapes depend on values

## What it measures
Lines that select by value (`nonzero`, `unique`, `masked_select`) and that torch's debug mode saw
synchronise: how often, and their share of the device idle time after synchronisations.

## Why it is slow
The host needs the size of the result before it can continue. It waits for the device, and the
device then waits for the host.

## What to do
Keep the shape: `torch.where(mask, x, 0)`, or use the mask as a weight in the sum and in its
divisor.

## How the gain is computed
From the idle time after synchronisations × these lines' share of them. High end: all of that. Low
end: half of the time that the host waits.

## When this advice is wrong
If the mask keeps a small part of a large tensor, and much work follows, selecting is cheaper.
"""

from __future__ import annotations

from tdiag.evidence.device import DeviceTime, SyncLine, SyncLines, Syncs
from tdiag.evidence.steps import Budget
from tdiag.evidence.store import Evidence
from tdiag.evidence.torch_ops import Ops
from tdiag.model.diagnosis import Fix
from tdiag.rules.base import Found, count, where
from tdiag.rules.device_waits import drains, waits
from tdiag.rules.examples import at, budget, device_time, op_line, ops, sync
from tdiag.units import per_step, plural

CODE = "TD402"
NAME = "shapes-that-depend-on-values"
CLASS = "sync"
UNTRIED = "needs another expression, without a mask"

# Calls whose result's size depends on values (torch's documentation of each).
SELECTING = frozenset({"nonzero", "unique", "masked_select"})


def check(
    budget: Budget, syncs: Syncs, sync_lines: SyncLines, ops: Ops, device: DeviceTime
) -> Found | None:
    selecting = {line.at.spot for line in ops.lines if SELECTING & line.conversions.keys()}
    mine = [x for x in sync_lines.lines if x.at.spot in selecting]
    if not mine:
        return None
    worst = max(mine, key=lambda line: line.per_step)
    times = sum(line.per_step for line in mine)
    share = times / sum(line.per_step for line in sync_lines.lines)
    found = drains(budget, device, waits(syncs), worst.at, share)
    if found is None:
        return None
    return Found(
        summary=(
            f"The device idles {per_step(found.idle, budget.step_ns)} after"
            f" {plural(round(times, 1), 'call')} whose result size depends on values"
            f"{where(worst.at)}."
        ),
        evidence=(
            count("synchronisations of these lines", times, "ops", "per_step"),
            *found.measures(),
        ),
        fix=Fix(
            f"Keep the shape{where(worst.at)}: torch.where(mask, x, 0), or (x * mask).sum() /"
            " mask.sum(), instead of x[mask] or nonzero().",
            "review",
            action="Use torch.where instead of selecting by mask",
        ),
        gain=found.gain(),
        at=worst.at,
    )


def fires() -> Evidence:
    return _masked({"nonzero": 3.0})


def clear() -> Evidence:
    """As many synchronisations, by reading values."""
    return _masked({"item": 3.0})


def _masked(conversions: dict[str, float]) -> Evidence:
    line = op_line(55, "loss", 3, conversions=conversions)
    warned = SyncLines(lines=(SyncLine(at=at(55), per_step=3.0), SyncLine(at=at(70), per_step=1.0)))
    waiting = sync(name="cudaStreamSynchronize", count=4.0, at=None)
    step = budget(device=True, compute=20, sync=4, launch=1)
    return Evidence().add(step, Syncs(syncs=(waiting,)), warned, ops(line), device_time(26))
