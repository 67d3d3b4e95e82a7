"""Device memory is nearly full and is reallocated in the step

## What it measures
The peak of torch's allocated device memory compared with the device's total, and the device's idle
time while the host allocates or frees memory (`cudaMalloc`, `cudaFree`) in a step.

## Why it is slow
Torch caches what it has allocated, so a warm step allocates nothing. Without free memory it must
first release cached blocks, which waits for the device, and then allocate them again.

## What to do
Hold less: a smaller batch with gradient accumulation, activation checkpointing, in-place
activations, `del` of tensors no longer needed. If sizes vary, expandable segments waste less.

## How the gain is computed
High end: all idle time of these calls. Low end: nothing, if they continue with memory free.

## When this advice is wrong
The calls may be for pinned host memory, which a trace counts with them, or come from
`empty_cache()` in the loop. Memory that other programs hold on the device is not counted.
"""

from __future__ import annotations

from tdiag.evidence.device import DeviceTime
from tdiag.evidence.feeding import Loaders
from tdiag.evidence.memory import DeviceMemory
from tdiag.evidence.steps import Budget
from tdiag.evidence.store import Evidence
from tdiag.evidence.training import Layers, Modules
from tdiag.model.diagnosis import Fix
from tdiag.rules.base import Abstain, Found, Gain, bytes_, count, held, ns, where
from tdiag.rules.examples import GB, budget, device_holds, device_time, loaders, module
from tdiag.rules.memory_in_use import PEAK, device_memory
from tdiag.rules.thresholds import USABLE_MEMORY_FRAC
from tdiag.units import duration, percent, plural, size

CODE = "TD806"
NAME = "device-memory-full"
CLASS = "memory"
UNTRIED = "steps with another batch size cannot be compared"
AFTER = {"TD805": "with less in memory, it only takes longer until the kept tensors fill it"}


def check(
    budget: Budget,
    device: DeviceTime,
    memory: DeviceMemory,
    loaders: Loaders | None,
    modules: Modules | None,
    layers: Layers | None,
) -> Found | None:
    if not budget.has_device:
        return None
    used, total = device_memory(memory)
    if device.allocations_per_step is None:
        raise Abstain("no runtime calls were traced")
    stalled = held(budget, "alloc")
    if not stalled or not device.allocations_per_step or used < USABLE_MEMORY_FRAC * total:
        return None
    evidence = [
        bytes_(PEAK, used, "probe"),
        bytes_("device memory", total, "probe"),
        count("allocating and freeing calls", device.allocations_per_step, "trace", "per_step"),
        ns("device idle during these calls", stalled, "budget"),
    ]
    unused = memory.peak_reserved_bytes - memory.peak_allocated_bytes
    if unused > 0:
        evidence.append(bytes_("reserved but unused, at the peaks", unused, "probe"))
    return Found(
        summary=(
            f"The device's memory is {percent(used / total)} full ({size(used)} of {size(total)}),"
            f" and {plural(device.allocations_per_step, 'call')} per step that allocate or free"
            f" memory leave it idle for {duration(stalled)} ({percent(stalled / budget.step_ns)})."
        ),
        evidence=tuple(evidence),
        fix=Fix(
            f"{_smaller_batch(loaders, modules, used)}. Or recompute the largest blocks with"
            f" torch.utils.checkpoint, use inplace=True activations{_in_place(layers)}, and del"
            " tensors that are no longer needed. If sizes vary, set"
            " PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True.",
            "review",
            action="Halve the batch and accumulate gradients",
        ),
        gain=Gain(
            0.0,
            stalled,
            "high end: no call allocates in a step; low end: nothing, if calls still allocate.",
            ("alloc",),
            high_cuts={"alloc": 0.0},
        ),
    )


def _smaller_batch(loaders: Loaders | None, modules: Modules | None, used: int) -> str:
    """The advice, and the most it frees: activations scale with the batch, weights and gradients do
    not."""
    loader = loaders.train() if loaders else None
    text = "Halve the batch and accumulate gradients over twice as many"
    if loader is not None and loader.batch_size:
        text += f" (batch_size={max(1, loader.batch_size // 2)}{where(loader.created_at)})"
    if modules is None:
        return text
    fixed = 2 * sum(module.parameter_bytes for module in modules.modules)
    return f"{text}; this frees {size(max(0, used - fixed) / 2)} at most"


def _in_place(layers: Layers | None) -> str:
    freed = sum(x.held_bytes for x in layers.out_of_place or ()) if layers else 0.0
    return f" (this frees {size(freed)})" if freed else ""


def fires() -> Evidence:
    return _training(used=78 * GB)


def clear() -> Evidence:
    """As many allocations with half of the memory free."""
    return _training(used=40 * GB)


def _training(used: int) -> Evidence:
    return Evidence().add(
        budget(device=True, compute=44, alloc=6), device_time(50, allocations_per_step=12.0),
        device_holds(used),
        loaders(),
        Modules(modules=(module("Net", parameter_bytes=4 * GB),)),
    )  # fmt: skip
