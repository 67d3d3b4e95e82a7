"""Batches are copied from pageable memory

## What it measures
Host-to-device copies out of pageable memory: their time with no compute running, bytes and GB/s.

## Why it is slow
The driver first copies pageable memory into a pinned buffer of its own, piece by piece, and the
host waits meanwhile: half the bandwidth, and no overlap with compute, since even
`non_blocking=True` blocks from pageable memory.

## What to do
Let the loader deliver pinned batches, and copy them with `non_blocking=True`.

## How the gain is computed
From the copy time that nothing overlaps. High end: all of it, hidden behind compute. Low end: half
of it, since pinned copies run at about twice the bandwidth.

## When this advice is wrong
Pinned memory cannot be swapped: with little free RAM, or huge batches, it slows the whole machine.
"""

from __future__ import annotations

from tdiag.evidence.data import Loader, Loaders
from tdiag.evidence.device import DeviceTime, Transfers
from tdiag.evidence.kinds import Budget
from tdiag.evidence.store import Evidence
from tdiag.model.diagnosis import Fix
from tdiag.model.place import Place
from tdiag.rules.base import Found, Gain, where
from tdiag.rules.copies import copy_measures, exposed, merged
from tdiag.rules.examples import budget, copy, device_time, loaders
from tdiag.rules.measures import ns
from tdiag.units import duration, percent

CODE = "TD301"
NAME = "pageable-copies"
CLASS = "h2d"
AFTER = {
    "TD208": "pinned memory makes the copy of bytes that are too wide faster, not smaller",
}

# Pinned against pageable bandwidth in NVIDIA's "How to Optimize Data Transfers in CUDA C/C++":
# 5.7 against 2.3 and 6.2 against 3.1 GB/s, at least twice.
PINNED_SPEEDUP_LOW = 2.0


def check(
    budget: Budget, transfers: Transfers, device: DeviceTime, loaders: Loaders | None
) -> Found | None:
    copies = [x for x in transfers.copies if x.direction == "h2d" and x.memory == "pageable"]
    cost = exposed(copies, budget, device)
    if not cost:
        return None
    all_of_them = merged(copies)
    loader = loaders.train() if loaders else None
    at = all_of_them.at
    return Found(
        summary=(
            f"Copies from pageable memory{where(at)} hold up the device for {duration(cost)} a"
            f" step ({percent(cost / budget.step_ns)})."
        ),
        evidence=(
            *copy_measures(all_of_them),
            ns("host blocked in the copies", all_of_them.host_blocked_ns, "trace"),
        ),
        fix=Fix(_advice(loader, at), "safe", None if _pins(loader) else "pin_memory"),
        gain=Gain(
            cost * (1 - 1 / PINNED_SPEEDUP_LOW),
            cost,
            "low end: pinned copies run at twice the bandwidth; high end: they overlap compute.",
            ("h2d",),
            {"h2d pageable": 1 / PINNED_SPEEDUP_LOW},
            {"h2d pageable": 0.0, "wait h2d pageable": 0.0},
        ),
        at=at or (loader.created_at if loader else None),
    )


def _pins(loader: Loader | None) -> bool:
    return loader is not None and loader.pin_memory


def _advice(loader: Loader | None, at: Place | None) -> str:
    move = f"batch.to(device, non_blocking=True){where(at)}"
    if loader is None:
        return f"Pin the tensors once (tensor.pin_memory()) and copy them with {move}."
    if loader.pin_memory:
        return (
            "The loader pins its batches, but these copies come from elsewhere: a custom batch type"
            f" without pin_memory(), or tensors made after it. Pin them before {move}."
        )
    return f"DataLoader(..., pin_memory=True){where(loader.created_at)}, and {move}."


def fires() -> Evidence:
    step = budget(device=True, compute=30, h2d=8)
    return Evidence().add(step, Transfers(copies=(copy(),)), device_time(38), loaders())


def clear() -> Evidence:
    """The same copy from pinned memory, under the compute of the step before."""
    hidden = copy(memory="pinned", exposed_ns=0.0, host_blocked_ns=10_000.0)
    step = budget(device=True, compute=38)
    return Evidence().add(step, Transfers(copies=(hidden,)), device_time(38))
