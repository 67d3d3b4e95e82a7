"""The batch is small because the device's memory is full

## What it measures
The training batch, the device's memory in use at its peak in the clean steps, and how many backward
passes a step makes.

## Why it is slow
It is not: no step time is claimed. A small batch gives noisy gradients, which keeps the learning
rate small, and a full device allows no larger one.

## What to do
Gradient accumulation: several backward passes, one step. The effective batch grows and the memory
stays as it is. The learning rate grows with the effective batch, after a warm-up.

## How the gain is computed
Nothing is predicted: it is about how training converges, not about how long a step takes.

## When this advice is wrong
Many trainings converge as well, or better, with small batches. Batch norm's statistics are those of
one backward pass, so that accumulation does not improve them.
"""

from __future__ import annotations

import math

from tdiag.evidence.data import Loaders
from tdiag.evidence.kinds import Environment, Optimizers, Phases, System
from tdiag.evidence.store import Evidence
from tdiag.model.diagnosis import Fix
from tdiag.rules.base import Abstain, Found, where
from tdiag.rules.examples import GB, environment, loaders, optimizers, phases, system
from tdiag.rules.measures import bytes_, count
from tdiag.rules.shares import USABLE_MEMORY_FRAC
from tdiag.units import percent, size

CODE = "TD007"
NAME = "batch-limited-by-memory"
CLASS = "memory"

# Samples per device from which "Accurate, Large Minibatch SGD" (Goyal et al., 2017) scales the
# learning rate up, in proportion to the batch.
USUAL_BATCH = 32


def check(
    loaders: Loaders,
    system: System,
    phases: Phases,
    environment: Environment,
    optimizers: Optimizers | None,
) -> Found | None:
    loader = loaders.train()
    if environment.device_count == 0 or loader is None or not loader.batch_size:
        return None
    if environment.device_count != 1:
        raise Abstain("several devices are visible: whose memory was measured cannot be told")
    used, total = system.gpu_memory_used_bytes, system.gpu_memory_total_bytes
    if not used or not total:
        raise Abstain("the device's memory in use was not measured")
    passes = max(1, round(phases.counts.get("backward", 1.0)))
    effective = loader.batch_size * passes
    if effective >= USUAL_BATCH or used < USABLE_MEMORY_FRAC * total:
        return None
    passes_wanted = math.ceil(USUAL_BATCH / loader.batch_size)
    return Found(
        summary=(
            f"A step learns from {effective} samples, and a batch of {loader.batch_size} already"
            f" fills {percent(used / total)} of the device's memory ({size(used)} of"
            f" {size(total)})."
        ),
        evidence=(
            count("batch_size", loader.batch_size, "probe"),
            count("backward passes", passes, "baseline", "per_step"),
            bytes_("device memory in use, peak", used, "system"),
            bytes_("device memory", total, "system"),
        ),
        fix=Fix(
            f"Accumulate {passes_wanted} batches of {loader.batch_size}{where(loader.created_at)}:"
            f" (loss / {passes_wanted}).backward() for each, then optimizer.step() and"
            f" zero_grad() once; {_rate(optimizers, passes_wanted / passes)}, after a"
            " warm-up.",
            "manual",
        ),
        at=loader.created_at,
    )


def _rate(optimizers: Optimizers | None, factor: float) -> str:
    known = [x.config.get("lr") for x in optimizers.optimizers] if optimizers else []
    rate = next((x for x in known if isinstance(x, (int, float)) and x), None)
    if rate is None:
        return f"raise the learning rate up to {factor:.3g} times"
    return f"raise the learning rate from {rate:g} up to {rate * factor:.3g} (in proportion)"


def fires() -> Evidence:
    return _training(used=78 * GB)


def clear() -> Evidence:
    """As small a batch with memory to spare: a larger batch would do."""
    return _training(used=16 * GB)


def _training(used: int) -> Evidence:
    return Evidence().add(
        loaders(batch_size=4), phases(forward=30, backward=60), optimizers("SGD", lr=0.02),
        system(gpu_memory_used_bytes=used, gpu_memory_total_bytes=80 * GB),
        environment(device="NVIDIA A100-SXM4-80GB", device_count=1),
    )  # fmt: skip
