"""Device memory is released and reallocated in the step

## What it measures
Calls that allocate or free device memory in the traced steps, the device's idle time during them,
and peak memory, of which enough is free.

## Why it is slow
Torch caches what it has allocated, so a warm step allocates nothing. `torch.cuda.empty_cache()` in
the loop releases the cache: freeing waits for the device, and so does allocating again in the next
step.

## What to do
Remove `empty_cache()` from the loop. It frees nothing that the training itself could not use.

## How the gain is computed
High end: all idle time of these calls. Low end: nothing, if they do not come from `empty_cache()`.

## When this advice is wrong
The calls may be for pinned host memory, which a trace counts with them (a loader that pins batches
of new sizes), or for sizes that no step had before. Another program on the device may need the
released memory.
"""

from __future__ import annotations

from tdiag.evidence.device import DeviceTime
from tdiag.evidence.memory import DeviceMemory
from tdiag.evidence.steps import Budget
from tdiag.evidence.store import Evidence
from tdiag.evidence.training import Settings
from tdiag.model.diagnosis import Fix
from tdiag.rules.base import Found, Gain, bytes_, count, held, ns, where
from tdiag.rules.examples import GB, budget, device_holds, device_time
from tdiag.rules.memory_in_use import PEAK, device_memory
from tdiag.rules.thresholds import USABLE_MEMORY_FRAC
from tdiag.units import duration, percent, plural, size

CODE = "TD809"
NAME = "memory-given-back-in-step"
CLASS = "memory"


def check(
    budget: Budget, device: DeviceTime, memory: DeviceMemory, settings: Settings | None
) -> Found | None:
    stalled = held(budget, "alloc")
    if not budget.has_device or not stalled or not device.allocations_per_step:
        return None
    used, total = device_memory(memory)
    if used >= USABLE_MEMORY_FRAC * total:
        return None  # memory is short: TD806
    called = settings.last("empty_cache") if settings else None
    at = called.at if called and called.per_step else None
    return Found(
        summary=(
            f"{plural(device.allocations_per_step, 'call')} per step that allocate or free memory"
            f" leave the device idle for {duration(stalled)} ({percent(stalled / budget.step_ns)}),"
            f" although {size(total - used)} of {size(total)} are free."
        ),
        evidence=(
            count("allocating and freeing calls", device.allocations_per_step, "trace", "per_step"),
            ns("device idle during these calls", stalled, "budget"),
            bytes_(PEAK, used, "probe"),
            bytes_("device memory", total, "probe"),
        ),
        fix=Fix(
            f"Remove torch.cuda.empty_cache(){where(at)} from the loop."
            if at
            else "Remove torch.cuda.empty_cache() from the loop. If there is none, pad varying"
            " sizes or set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True.",
            "safe",
            "torch.empty_cache=off",
            action="Remove empty_cache() from the training loop",
        ),
        gain=Gain(
            0.0,
            stalled,
            "high end: no call allocates in a step; low end: nothing, if empty_cache() is not why.",
            ("alloc",),
        ),
        at=at,
    )


def fires() -> Evidence:
    return _training(used=20 * GB)


def clear() -> Evidence:
    """Memory is short, so nothing can be cached."""
    return _training(used=78 * GB)


def _training(used: int) -> Evidence:
    return Evidence().add(
        budget(device=True, compute=44, alloc=6), device_time(50, allocations_per_step=12.0),
        device_holds(used),
    )  # fmt: skip
