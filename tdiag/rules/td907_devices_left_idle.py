"""Further devices stand idle

## What it measures
Twice a second the driver (NVML) reports the use of every device that the program may use
(`CUDA_VISIBLE_DEVICES`). Reported if no kernel ran on some of them while one process trained on
another.

## Why it is slow
The step is no slower, but a training on N devices gets through up to N times as many samples in the
same time.

## What to do
Train with DistributedDataParallel, one process for each device: `torchrun --nproc-per-node=N`. Keep
the learning rate in proportion to the whole batch, or divide the batch among the devices. If one
device is all you need, `CUDA_VISIBLE_DEVICES=0` leaves the others to somebody else.

## How the gain is computed
None is claimed: a step on N devices takes as long as one, plus the exchange of its gradients.

## When this advice is wrong
The other devices belong to somebody who will use them soon, or the training is too short to bother.
"""

from __future__ import annotations

from tdiag.evidence.device import IdleDevices
from tdiag.evidence.machine import Environment
from tdiag.evidence.steps import Budget
from tdiag.evidence.store import Evidence
from tdiag.model.diagnosis import Fix
from tdiag.rules.base import Found, count
from tdiag.rules.examples import budget, environment

CODE = "TD907"
NAME = "devices-left-idle"
CLASS = "compute"


def check(budget: Budget, idle: IdleDevices, environment: Environment) -> Found | None:
    if not budget.has_device or environment.world_size > 1:
        return None
    some = idle.count + 1
    stood = f"{idle.count} further device{'s' * (idle.count > 1)} stood idle"
    return Found(
        summary=f"{stood} in all of {idle.samples} readings, while one process trained.",
        evidence=(
            count("idle devices", idle.count, "system"),
            count("readings", idle.samples, "system"),
        ),
        fix=Fix(
            f"Train on all {some} devices with DistributedDataParallel, one process for each:"
            f" torchrun --nproc-per-node={some} train.py.",
            "review",
            action="Train on all devices",
        ),
    )


def fires() -> Evidence:
    return _machine(environment(device_count=4))


def clear() -> Evidence:
    """One rank of a job on several machines."""
    return _machine(environment(device_count=4, world_size=2))


def _machine(of: Environment) -> Evidence:
    idle = IdleDevices(count=3, samples=20)
    return Evidence().add(budget(device=True, compute=80, launch=20), idle, of)
