"""Tensors are allocated by the driver, step after step

## What it measures
In the traced steps: calls of `cudaMalloc` and `cudaFree` (`hipMalloc`, `hipFree`), their pattern,
and the device's idle time during them.

## Why it is slow
Torch caches device memory, so a warm step makes none of these calls. Each takes the driver tens of
microseconds to milliseconds, and freeing waits until the device has nothing to do.

## What to do
If nearly every kernel has its own call, the cache is off: unset `PYTORCH_NO_CUDA_MEMORY_CACHING`,
and remove any custom allocator. If allocations fail and are retried after the cache was emptied,
memory is short or fragmented: use a smaller batch, or
`PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True`. If memory is only freed, something empties the
cache: remove `torch.cuda.empty_cache()` from the loop.

## How the gain is computed
High end: all idle time of these calls. Low end: half of it if the cache is off, and nothing
otherwise, because sizes that no step had before must be allocated once.

## When this advice is wrong
In the first steps the cache fills up. Under `compute-sanitizer` the cache is off on purpose.
"""

from __future__ import annotations

from tdiag.evidence.device import DeviceTime
from tdiag.evidence.machine import System
from tdiag.evidence.memory import AllocatorCalls
from tdiag.evidence.steps import Budget
from tdiag.evidence.store import Evidence
from tdiag.model.diagnosis import Fix
from tdiag.model.threshold import NOTICEABLE_FRAC, Threshold
from tdiag.rules.base import Found, Gain, count, held, ns
from tdiag.rules.examples import allocator_calls, budget, device_time, system
from tdiag.rules.thresholds import LOW_END_FRAC
from tdiag.units import percent, plural

CODE = "TD811"
NAME = "allocator-off-or-thrashing"
CLASS = "memory"
UNTRIED = "the variable must be unset where the run is started; else: `torch.empty_cache`"

MIN_FREES = Threshold(
    10, "calls per step", "Heuristic: a warm step frees nothing, and a new context frees once."
)
UNCACHED_FRAC = Threshold(
    0.25,
    "of the kernels",
    "Heuristic: without the cache each new tensor is allocated, and most kernels write a new one;"
    " with it a warm step allocates nothing.",
)


def check(
    budget: Budget, calls: AllocatorCalls, device: DeviceTime, system: System | None
) -> Found | None:
    stalled = held(budget, "alloc")
    if calls.frees < MIN_FREES or stalled < NOTICEABLE_FRAC * budget.step_ns:
        return None
    off = min(calls.mallocs, calls.frees) >= UNCACHED_FRAC * device.kernels_per_step
    if off:
        cause = "These are about as many as kernels, so torch's caching allocator is off"
        fix = Fix(
            "Unset PYTORCH_NO_CUDA_MEMORY_CACHING in the environment of the training, and remove"
            " any custom allocator (torch.cuda.memory.change_current_allocator).",
            "safe",
            action="Switch torch's caching allocator on",
        )
    elif calls.retries:
        cause = "Allocations fail and are tried again after the cache was emptied"
        fix = Fix(
            "Use a smaller batch, or set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True so that"
            " free memory is not fragmented.",
            "review",
            "process.expandable_segments",
            action="Leave the allocator spare memory",
        )
    elif system is not None:
        return None  # a run knows how much memory was free: TD806, TD809
    else:
        cause = "Something empties the cache of torch's allocator"
        fix = Fix(
            "Remove torch.cuda.empty_cache() from the loop.",
            "safe",
            "torch.empty_cache=off",
            action="Remove empty_cache() from the training loop",
        )
    return Found(
        summary=(
            f"The device idles {percent(stalled / budget.step_ns)} of the step while"
            f" {plural(calls.mallocs + calls.frees, 'call')} allocate or free its memory. {cause}."
        ),
        evidence=(
            count("allocating calls", calls.mallocs, "trace", "per_step"),
            count("freeing calls", calls.frees, "trace", "per_step"),
            count("retried allocations", calls.retries, "trace", "per_step"),
            count("kernels", device.kernels_per_step, "trace", "per_step"),
            ns("host in these calls", calls.host_ns, "trace"),
            ns("device idle during these calls", stalled, "budget"),
        ),
        fix=fix,
        gain=Gain(
            stalled * LOW_END_FRAC if off else 0.0,
            stalled,
            "high end: no call allocates in a step; low end: "
            + ("half of that." if off else "the calls cannot be avoided."),
            ("alloc",),
            {"alloc": 1 - LOW_END_FRAC} if off else {},
            {"alloc": 0.0},
        ),
    )


def fires() -> Evidence:
    return _training(stalled_ms=30)


def clear() -> Evidence:
    """The same calls, hidden behind the device's work."""
    return _training(stalled_ms=1)


def _training(stalled_ms: float) -> Evidence:
    step = budget(device=True, compute=20, alloc=stalled_ms)
    return Evidence().add(step, allocator_calls(), device_time(20 + stalled_ms), system())
