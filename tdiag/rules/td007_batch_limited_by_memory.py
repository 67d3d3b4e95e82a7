"""The device's memory limits the batch size

## What it measures
The training batch, what torch had allocated on the device at its peak, and the backward passes per
step.

## Why it is slow
No step time is claimed. A small batch gives noisy gradients, which need a small learning rate; a
full device allows no larger batch.

## What to do
Accumulate gradients: several backward passes per step. The effective batch grows, the memory does
not. Raise the learning rate with the effective batch, after a warm-up.

## How the gain is computed
No gain is predicted: convergence may improve, the time per sample does not.

## When this advice is wrong
Many trainings converge as well, or better, with small batches. Batch norm takes its statistics from
one backward pass; accumulation does not improve them.
"""

from __future__ import annotations

import math

from tdiag.evidence.feeding import Loaders
from tdiag.evidence.machine import Environment
from tdiag.evidence.memory import DeviceMemory
from tdiag.evidence.steps import Phases
from tdiag.evidence.store import Evidence
from tdiag.evidence.training import Optimizers
from tdiag.model.diagnosis import Fix
from tdiag.model.threshold import Threshold
from tdiag.rules.base import Found, bytes_, count, where
from tdiag.rules.examples import GB, device_holds, environment, loaders, optimizers, phases
from tdiag.rules.memory_in_use import PEAK, device_memory
from tdiag.rules.thresholds import USABLE_MEMORY_FRAC
from tdiag.units import percent, size

CODE = "TD007"
NAME = "batch-limited-by-memory"
CLASS = "memory"

USUAL_BATCH = Threshold(
    32,
    "samples",
    'Goyal et al., "Accurate, Large Minibatch SGD" (2017): the batch per device from which they'
    " scale the learning rate up in proportion.",
)


def check(
    loaders: Loaders,
    phases: Phases,
    environment: Environment,
    memory: DeviceMemory | None,
    optimizers: Optimizers | None,
) -> Found | None:
    loader = loaders.train()
    if environment.device_count == 0 or loader is None or not loader.batch_size:
        return None
    used, total = device_memory(memory)
    passes = max(1, round(phases.counts.get("backward", 1.0)))
    effective = loader.batch_size * passes
    if effective >= USUAL_BATCH or used < USABLE_MEMORY_FRAC * total:
        return None
    passes_wanted = math.ceil(USUAL_BATCH / loader.batch_size)
    return Found(
        summary=(
            f"A step trains on {effective} samples, and a batch of {loader.batch_size} already"
            f" fills {percent(used / total)} of the device memory ({size(used)} of {size(total)})."
        ),
        evidence=(
            count("batch_size", loader.batch_size, "probe"),
            count("backward passes", passes, "baseline", "per_step"),
            bytes_(PEAK, used, "probe"),
            bytes_("device memory", total, "probe"),
        ),
        fix=Fix(
            f"Accumulate the gradients of {passes_wanted} batches of {loader.batch_size}"
            f"{where(loader.created_at)} before each optimizer step."
            f" {_rate(optimizers, passes_wanted / passes)}, after a warm-up.",
            "manual",
            action=f"Accumulate gradients over {passes_wanted} batches",
            code=(
                "for index, (inputs, targets) in enumerate(loader, start=1):\n"
                f"    (criterion(model(inputs), targets) / {passes_wanted}).backward()\n"
                f"    if index % {passes_wanted} == 0:\n"
                "        optimizer.step()\n"
                "        optimizer.zero_grad()"
            ),
        ),
        at=loader.created_at,
    )


def _rate(optimizers: Optimizers | None, factor: float) -> str:
    known = [x.config.get("lr") for x in optimizers.optimizers] if optimizers else []
    rate = next((x for x in known if isinstance(x, (int, float)) and x), None)
    if rate is None:
        return f"Raise the learning rate up to {factor:.3g} times"
    return f"Raise the learning rate from {rate:g} up to {rate * factor:.3g}, in proportion"


def fires() -> Evidence:
    return _training(used=78 * GB)


def clear() -> Evidence:
    """The same batch with free memory: a larger batch fits."""
    return _training(used=16 * GB)


def _training(used: int) -> Evidence:
    return Evidence().add(
        loaders(batch_size=4), phases(forward=30, backward=60), optimizers("SGD", lr=0.02),
        device_holds(used),
        environment(device="NVIDIA A100-SXM4-80GB", device_count=1),
    )  # fmt: skip
