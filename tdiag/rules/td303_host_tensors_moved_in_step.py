"""Tensors made on the host inside the step, then moved

## What it measures
Lines of the forward pass, loss or optimizer that build tensors from Python data, against the
host-to-device copies in the step. The batch itself is moved before the forward pass and is not
meant.

## Why it is slow
Each such tensor is filled on the host, copied through pageable memory, and waited for; the host
cannot run ahead of the device.

## What to do
Make it where it is used: `torch.zeros(..., device=x.device)`, or once, as a buffer of the module.

## How the gain is computed
High end: these tensors' part of the copies, by number, takes its part of the time for which copies
block host or device. Low end: nothing, since they may be smaller than the others.

## When this advice is wrong
Values that really are new on the host in each step (a schedule, a random crop) must travel: send
them with the batch.
"""

from __future__ import annotations

from tdiag.evidence.device import DeviceTime, Transfers
from tdiag.evidence.kinds import Budget, OpLine, Ops
from tdiag.evidence.store import Evidence
from tdiag.model.diagnosis import Fix
from tdiag.rules.base import Found, Gain, where
from tdiag.rules.device_waits import copy_measures, exposed, merged
from tdiag.rules.examples import MS, budget, copy, device_time, op_line, ops
from tdiag.rules.measures import count
from tdiag.units import duration, percent, plural

CODE = "TD303"
NAME = "host-tensors-moved-in-step"
CLASS = "h2d"

# Phases of Ops in which the batch has already arrived on the device.
INSIDE_STEP = ("forward", "loss", "optimizer")


def check(budget: Budget, transfers: Transfers, ops: Ops, device: DeviceTime) -> Found | None:
    makers = [line for line in ops.lines if line.phase in INSIDE_STEP and line.constructions]
    copies = [copy for copy in transfers.copies if copy.direction == "h2d"]
    if not makers or not copies:
        return None
    travelling = merged(copies)
    made = sum(line.constructions for line in makers)
    share = min(1.0, made / travelling.count)
    blocked = travelling.host_blocked_ns * budget.step_ns / device.step_ns
    cost = share * max(blocked, exposed(copies, budget, device))
    worst = max(makers, key=_cost)
    return Found(
        summary=(
            f"The host makes {plural(round(made), 'tensor')} a step{where(worst.at)}, among"
            f" {plural(round(travelling.count), 'copy', 'copies')} to the device, which take up to"
            f" {duration(cost)} ({percent(cost / budget.step_ns)} of the step) for them."
        ),
        evidence=(
            count("tensors built from Python data in the step", made, "ops", "per_step"),
            *copy_measures(travelling),
        ),
        fix=Fix(
            f"Make the tensor on the device{where(worst.at)} (device=x.device at creation), or"
            " once, before the loop (module.register_buffer).",
            "safe",
        ),
        gain=Gain(
            0.0,
            cost,
            "high end: their part of the copies, by number; low end: they are the small ones.",
            ("h2d", "sync", "launch", "python_loss"),
        ),
        at=worst.at,
    )


def _cost(line: OpLine) -> float:
    return line.elapsed_ns


def fires() -> Evidence:
    small = copy(count=13.0, bytes=9600.0, device_ns=0.1 * MS, exposed_ns=1.2 * MS)
    line = op_line(23, "forward", 24, constructions=12.0)
    step = budget(device=True, compute=8, h2d=1.2, launch=1.5)
    return Evidence().add(step, Transfers(copies=(small,)), ops(line), device_time(10.7))


def clear() -> Evidence:
    """Only the batch is copied, and made before the forward pass."""
    step = budget(device=True, compute=8, h2d=2)
    line = op_line(60, "prepare", 2, constructions=1.0)
    return Evidence().add(step, Transfers(copies=(copy(),)), ops(line), device_time(10))
