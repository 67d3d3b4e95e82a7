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
High end: all idle time that follows. Low end: no more than the host spent waiting, which is what
is left when launching is the bottleneck.

## When this advice is wrong
A value that decides what is computed next (early stopping inside a step, beam search) must be
read. On a CPU nothing is asynchronous and `.item()` is free: the rule then abstains.
"""

from __future__ import annotations

from tdiag.diagnose.model import Fix, Measure
from tdiag.evidence.device import DeviceTime, Sync, Syncs
from tdiag.evidence.kinds import Budget, Location, SyncLines
from tdiag.evidence.store import Evidence
from tdiag.rules.base import Found, Gain, duration, percent, where
from tdiag.rules.examples import budget, device_time, sync
from tdiag.rules.measures import count, ns

CODE = "TD401"
NAME = "sync-drains-device"
CLASS = "sync"

# Asked for by name (`torch.cuda.synchronize`), or caused by data-dependent shapes: other rules'.
NOT_CONVERSIONS = ("DeviceSynchronize", "aten::nonzero", "aten::masked_select", "aten::_unique")
# Logging every so many steps leaves this share of the synchronisations; the usual choice.
LOG_EVERY = 50


def check(
    budget: Budget, syncs: Syncs, device: DeviceTime, sync_lines: SyncLines | None
) -> Found | None:
    dear = [sync for sync in syncs.syncs if _conversion(sync) and sync.idle_after_ns > 0]
    idle = sum(sync.idle_after_ns for sync in dear)
    if not idle:
        return None
    scale = budget.step_ns / device.step_ns  # traced steps are longer than clean ones
    won = sum(min(sync.idle_after_ns, sync.host_ns) for sync in dear)
    worst = max(dear, key=lambda sync: sync.idle_after_ns)
    at = worst.at or _line(sync_lines)
    times = sum(sync.count for sync in dear)
    return Found(
        summary=(
            f"{times:.1f} synchronisations a step{where(at)} leave the device idle for"
            f" {duration(idle * scale)}, {percent(idle / device.step_ns)} of the step."
        ),
        evidence=(
            count("synchronisations that drain the device", times, "trace", "per_step"),
            ns("device idle after them", idle, "trace"),
            ns("host waiting in them", sum(sync.host_ns for sync in dear), "trace"),
            *(_measure(sync) for sync in sorted(dear, key=lambda s: -s.idle_after_ns)[:3]),
        ),
        fix=Fix(
            f"Keep the value on the device{where(at)} (total += loss.detach()) and read it every"
            f" {LOG_EVERY} steps: `if step % {LOG_EVERY} == 0: log(total.item())`.",
            "safe",
        ),
        gain=Gain(
            won * scale * (1 - 1 / LOG_EVERY),
            idle * scale,
            "high end: all device idle time after the synchronisations; low end: what the host"
            " spent waiting in them, if launching is the bottleneck.",
            ("sync", "launch", "other", "d2h"),
        ),
        at=at,
    )


def _conversion(sync: Sync) -> bool:
    return not any(name in sync.name for name in NOT_CONVERSIONS)


def _line(lines: SyncLines | None) -> Location | None:
    """The line that synchronises most often, as torch's own debug mode warned."""
    if lines is None:
        return None
    return max(lines.lines, key=lambda line: line.per_step).at if lines.lines else None


def _measure(sync: Sync) -> Measure:
    return ns(f"idle after {sync.name}{where(sync.at)}", sync.idle_after_ns, "trace")


def fires() -> Evidence:
    step = budget(device=True, compute=20, sync=4, launch=1)
    return Evidence().add(step, Syncs(syncs=(sync(),)), device_time(26))


def clear() -> Evidence:
    """`loss.item()` that only waits for a busy device: work is queued, no idle time follows."""
    free = sync(idle_after_ns=0.0)
    return Evidence().add(budget(device=True, compute=25), Syncs(syncs=(free,)), device_time(26))
