"""Batches are copied from pageable memory

## What it measures
Host-to-device copies from pageable memory: their time without concurrent compute, bytes and GB/s.

## Why it is slow
The driver first copies pageable memory into its own pinned buffer, piece by piece, while the host
waits. That halves the bandwidth, and no compute overlaps the copy: from pageable memory even
`non_blocking=True` blocks.

## What to do
Let the loader return pinned batches, and copy them with `non_blocking=True`.

## How the gain is computed
From the copy time that no compute overlaps. High end: compute hides all of it. Low end: half of it,
because pinned copies have about twice the bandwidth.

## When this advice is wrong
Pinned memory cannot be swapped: with little free RAM, or huge batches, it slows the whole machine.
"""

from __future__ import annotations

from tdiag.evidence.device import DeviceTime, Transfers
from tdiag.evidence.feeding import Loader, Loaders
from tdiag.evidence.steps import Budget
from tdiag.evidence.store import Evidence
from tdiag.model.diagnosis import Fix
from tdiag.model.place import Place
from tdiag.model.threshold import Threshold
from tdiag.rules.base import Found, Gain, where
from tdiag.rules.device_waits import copy_measures, exposed, merged
from tdiag.rules.examples import budget, copy, device_time, loaders
from tdiag.units import per_step

CODE = "TD301"
NAME = "pageable-copies"
CLASS = "h2d"
AFTER = {
    "TD306": "data that stays on the device is not copied",
    "TD208": "narrower types make the copy smaller; pinned memory only makes it faster",
}

PINNED_SPEEDUP_LOW = Threshold(
    2,
    "times",
    'NVIDIA, "How to Optimize Data Transfers in CUDA C/C++": pinned and pageable bandwidths are'
    " 5.7 and 2.3, and 6.2 and 3.1 GB/s.",
)


def check(
    budget: Budget, transfers: Transfers, device: DeviceTime, loaders: Loaders | None
) -> Found | None:
    copies = [x for x in transfers.copies if x.direction == "h2d" and x.memory == "pageable"]
    cost = exposed(copies, budget, device)
    if not cost:
        return None
    together = merged(copies)
    loader = loaders.train() if loaders else None
    at = together.at
    return Found(
        summary=(
            f"The device waits {per_step(cost, budget.step_ns)} for copies from pageable"
            f" memory{where(at)}."
        ),
        evidence=copy_measures(together, host=True),
        fix=Fix(
            _advice(loader, at),
            "safe",
            None if loader is not None and loader.pin_memory else "loader.pin_memory",
            action="Send batches from pinned memory",
        ),
        gain=Gain(
            cost * (1 - 1 / PINNED_SPEEDUP_LOW),
            cost,
            "high end: compute hides the pinned copies; low end: they take half as long.",
            ("h2d",),
            {"h2d pageable": 1 / PINNED_SPEEDUP_LOW},
            {"h2d pageable": 0.0, "wait h2d pageable": 0.0},
        ),
        at=at or (loader.created_at if loader else None),
    )


def _advice(loader: Loader | None, at: Place | None) -> str:
    move = f"batch.to(device, non_blocking=True){where(at)}"
    if loader is None:
        return f"Pin the tensors once with tensor.pin_memory(), and copy them with {move}."
    if loader.pin_memory:
        return (
            "The loader pins its batches, so these copies are other tensors: a custom batch type"
            " without pin_memory(), or tensors created later. Give the batch type a pin_memory()"
            f" method, which the loader's own thread calls; then {move}. Pinning in the loop itself"
            " takes as long as the copy."
        )
    return f"DataLoader(..., pin_memory=True){where(loader.created_at)}. Then {move}."


def fires() -> Evidence:
    step = budget(device=True, compute=30, h2d=8)
    return Evidence().add(step, Transfers(copies=(copy(),)), device_time(38), loaders())


def clear() -> Evidence:
    """The same copy from pinned memory, overlapped by compute."""
    hidden = copy(memory="pinned", exposed_ns=0.0, host_blocked_ns=10_000.0)
    step = budget(device=True, compute=38)
    return Evidence().add(step, Transfers(copies=(hidden,)), device_time(38))
