"""An unchanged tensor is copied to the device every step

## What it measures
Copies between devices whose source is the same, unchanged tensor in three counted steps in a row,
by line; and modules that are moved within a step.

## Why it is slow
A constant on the host (class weights, positions, a mask, a lookup table) is copied at each use.
Moving a model that is already on the device walks all of its parameters.

## What to do
Move it once, before the loop. `self.register_buffer("weights", weights)` moves with the model;
`model.to(device)` belongs before the optimizer is created.

## How the gain is computed
From the device's idle time during copies, by a replay of the trace where that is possible. The
share of these copies by bytes and by number gives the two ends: a copy costs its bytes and a fixed
start.

## When this advice is wrong
A tensor may be too large to stay on the device. Changes through NumPy leave no trace in the tensor,
so it may only seem unchanged.
"""

from __future__ import annotations

from msgspec.structs import replace

from tdiag.evidence.device import DeviceTime, Transfers
from tdiag.evidence.steps import Budget
from tdiag.evidence.store import Evidence
from tdiag.evidence.torch_ops import Ops
from tdiag.model.diagnosis import Fix
from tdiag.rules.base import Found, Gain, bytes_, count, held, ns, where
from tdiag.rules.examples import MB, budget, copy, device_time, op_line, ops
from tdiag.units import plural, size

CODE = "TD304"
NAME = "same-tensor-sent-again"
CLASS = "h2d"


def check(
    budget: Budget, ops: Ops, transfers: Transfers | None, device: DeviceTime | None
) -> Found | None:
    again = sorted((x for x in ops.lines if x.moved_again), key=lambda x: -x.moved_bytes)
    if not again:
        return None
    first, times = again[0], sum(x.moved_again for x in again)
    moved = sum(x.moved_bytes for x in again)
    return Found(
        summary=(
            "An unchanged tensor is copied to the device every step"
            f"{where(first.at)}: {plural(times, 'copy', 'copies')} per step, {size(moved)}."
        ),
        evidence=(
            count("copies of the same tensor", times, "ops", "per_step"),
            bytes_("their bytes, per step", moved, "ops"),
            ns("copies to the device, not overlapped", held(budget, "h2d"), "budget"),
            *(
                count(f"modules moved{where(x.at)}", x.per_step, "ops", "per_step")
                for x in ops.module_moves[:1]
            ),
        ),
        fix=Fix(
            f"Copy it once, before the loop, and use the copy{where(first.at)}. In a module,"
            ' self.register_buffer("name", tensor) moves with the model.',
            "safe",
            "copies.once",
            action="Copy the constant to the device once, before the loop",
        ),
        gain=_gain(budget, transfers, device, times, moved),
        at=first.at,
    )


def _gain(
    budget: Budget,
    transfers: Transfers | None,
    device: DeviceTime | None,
    times: float,
    moved: float,
) -> Gain | None:
    """None if the copies were not traced: the finding is then an advisory."""
    sent = [x for x in transfers.copies if x.direction == "h2d"] if transfers else []
    total, number = sum(x.bytes or 0.0 for x in sent), sum(x.count for x in sent)
    if device is None or not total or not number:
        return None
    low, high = sorted((min(1.0, moved / total), min(1.0, times / number)))
    memories = {x.memory for x in sent}
    return Gain(
        low * held(budget, "h2d"),
        high * held(budget, "h2d"),
        "the two ends are these copies' share of all copied bytes and their share of all copies.",
        ("h2d",),
        {f"h2d {memory}": 1 - low for memory in memories},
        {f"{what} {x}": 1 - high for what in ("h2d", "wait h2d") for x in memories},
    )


def fires() -> Evidence:
    """Class weights and a table of positions, copied with each batch."""
    again = replace(op_line(58, "forward", 6), moved_again=2.0, moved_bytes=24.0 * MB)
    step = budget(device=True, compute=20, h2d=12, other=1)
    sent = Transfers(copies=(copy(count=3.0, bytes=38.5 * MB, exposed_ns=12e6),))
    return Evidence().add(step, ops(again), sent, device_time(33))


def clear() -> Evidence:
    """As many copies, of tensors that are new in each step."""
    step = budget(device=True, compute=20, h2d=12, other=1)
    sent = Transfers(copies=(copy(count=3.0, bytes=38.5 * MB, exposed_ns=12e6),))
    return Evidence().add(step, ops(op_line(58, "forward", 6)), sent, device_time(33))
