"""The training thread runs far from its device

## What it measures
Twice a second: the CPU on which the training process's main thread ran last, and the CPUs next to
its device (NVML). On a machine with several NUMA nodes a device is attached to one of them. Nothing
is said of a machine with one node.

## Why it is slow
From another node each launch, copy and answer crosses the link between the nodes. Pinned memory
lies on the thread's own node, so copies cross that link too, beside what else uses it.

## What to do
Bind the process to the device's node: `numactl --cpunodebind=N --membind=N python train.py`, for
each rank its own. `nvidia-smi topo -m` shows the node of each device.

## How the gain is computed
None is claimed: what a crossing costs depends on the machine. Time some steps both ways.

## When this advice is wrong
If the loader's workers need more cores than the device's node has, bind the ranks and leave the
workers free.
"""

from __future__ import annotations

from tdiag.evidence.device import DeviceNearness
from tdiag.evidence.steps import Budget
from tdiag.evidence.store import Evidence
from tdiag.model.diagnosis import Fix
from tdiag.model.threshold import MAJORITY_FRAC
from tdiag.rules.base import Found, count, frac, text
from tdiag.rules.examples import budget
from tdiag.units import percent

CODE = "TD307"
NAME = "far-from-the-device"
CLASS = "h2d"


def check(budget: Budget, nearness: DeviceNearness) -> Found | None:
    far = 1 - nearness.near_frac
    if not budget.has_device or far <= MAJORITY_FRAC:
        return None
    near = _ranges(nearness.cpus_near)
    return Found(
        summary=(
            f"In {percent(far)} of {nearness.samples} readings the training thread ran on another"
            f" NUMA node than its device's (CPUs {near})."
        ),
        evidence=(
            frac("readings on another node", far, "system"),
            count("readings", nearness.samples, "system"),
            text("CPUs next to the device", near, "system"),
        ),
        fix=Fix(
            "Bind the process to the device's NUMA node N (`nvidia-smi topo -m` shows it): `numactl"
            " --cpunodebind=N --membind=N python train.py`.",
            "safe",
            action="Run on the device's NUMA node",
        ),
    )


def _ranges(cpus: tuple[int, ...]) -> str:
    """As Linux writes them: ``0-2,8``."""
    starts = [cpu for cpu in cpus if cpu - 1 not in cpus]
    ends = [cpu for cpu in cpus if cpu + 1 not in cpus]
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in zip(starts, ends, strict=True))


def fires() -> Evidence:
    return _training(0.1)


def clear() -> Evidence:
    return _training(0.9)


def _training(near_frac: float) -> Evidence:
    near = DeviceNearness(samples=30, near_frac=near_frac, cpus_near=(0, 1, 2, 8))
    return Evidence().add(budget(device=True, compute=80, launch=20), near)
