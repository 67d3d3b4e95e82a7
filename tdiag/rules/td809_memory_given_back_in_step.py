"""Device memory is given back and allocated anew in the step

## What it measures
Calls that allocate or free device memory in the traced steps, the device's idle time meanwhile, and
the memory in use at its peak, of which enough is left.

## Why it is slow
Torch keeps what it has allocated, so that a warm step allocates nothing. `torch.cuda.empty_cache()`
in the loop gives it back: freeing waits for the device, and what the next step needs is allocated
anew, which waits as well.

## What to do
Take `empty_cache()` out of the loop. It frees nothing that the training itself could not use.

## How the gain is computed
High end: all the idle time of these calls. Low end: nothing, if they are not `empty_cache`'s.

## When this advice is wrong
The calls may be for pinned host memory, which a trace counts with them (a loader that pins batches
of new sizes), or for sizes that no step had before. Another program on the device may need what is
given back.
"""

from __future__ import annotations

from tdiag.evidence.device import DeviceTime
from tdiag.evidence.kinds import Budget, Environment, System
from tdiag.evidence.store import Evidence
from tdiag.model.diagnosis import Fix
from tdiag.rules.base import Abstain, Found, Gain, held
from tdiag.rules.examples import GB, budget, device_time, environment, system
from tdiag.rules.measures import bytes_, count, ns
from tdiag.rules.thresholds import USABLE_MEMORY_FRAC
from tdiag.units import duration, percent, plural, size

CODE = "TD809"
NAME = "memory-given-back-in-step"
CLASS = "memory"


def check(
    budget: Budget, device: DeviceTime, system: System, environment: Environment
) -> Found | None:
    stalled = held(budget, "alloc")
    if not budget.has_device or not stalled or not device.allocations_per_step:
        return None
    if environment.device_count != 1:
        raise Abstain("several devices are visible: whose memory was measured cannot be told")
    used, total = system.gpu_memory_used_bytes, system.gpu_memory_total_bytes
    if not used or not total:
        raise Abstain("the device's memory in use was not measured")
    if used >= USABLE_MEMORY_FRAC * total:
        return None  # it is short
    return Found(
        summary=(
            f"Allocating and freeing memory ({plural(device.allocations_per_step, 'call')} a step)"
            f" leaves the device idle for {duration(stalled)}"
            f" ({percent(stalled / budget.step_ns)}), with {size(total - used)} of {size(total)}"
            " free."
        ),
        evidence=(
            count("allocating and freeing calls", device.allocations_per_step, "trace", "per_step"),
            ns("device idle meanwhile", stalled, "budget"),
            bytes_("device memory in use, peak", used, "system"),
            bytes_("device memory", total, "system"),
        ),
        fix=Fix(
            "Take torch.cuda.empty_cache() out of the loop; if there is none, pad varying sizes or"
            " set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True.",
            "safe",
        ),
        gain=Gain(
            0.0,
            stalled,
            "high end: no call allocates in a step; low end: they are not empty_cache's.",
            ("alloc",),
        ),
    )


def fires() -> Evidence:
    return _training(used=20 * GB)


def clear() -> Evidence:
    """Memory is short, so that nothing can be kept."""
    return _training(used=78 * GB)


def _training(used: int) -> Evidence:
    return Evidence().add(
        budget(device=True, compute=44, alloc=6), device_time(50, allocations_per_step=12.0),
        system(gpu_memory_used_bytes=used, gpu_memory_total_bytes=80 * GB),
        environment(device="NVIDIA A100-SXM4-80GB", device_count=1),
    )  # fmt: skip
