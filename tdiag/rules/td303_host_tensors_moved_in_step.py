"""Tensors made on the host inside the step, then moved

## What it measures
Host-to-device copies from lines of the forward pass, loss or optimizer, or from lines that build a
tensor from Python data: not the batch, which is moved before the forward pass.

## Why it is slow
Each such tensor is filled on the host, copied through pageable memory, and waited for; the host
cannot run ahead of the device.

## What to do
Make it where it is used: `torch.zeros(..., device=x.device)`, or once, as a buffer of the module.

## How the gain is computed
Low end: the copies' time that nothing overlaps. High end: also the time for which the host was
blocked in them.

## When this advice is wrong
Values that really are new on the host in each step (a schedule, a random crop) must travel: send
them with the batch.
"""

from __future__ import annotations

from tdiag.diagnose.model import Fix
from tdiag.evidence.device import Copy, DeviceTime, Transfers
from tdiag.evidence.kinds import Budget, OpLine, Ops
from tdiag.evidence.store import Evidence
from tdiag.rules.base import Found, Gain, duration, percent, where
from tdiag.rules.copies import copy_measures, exposed, merged
from tdiag.rules.examples import MS, at, budget, copy, device_time, op_line, ops
from tdiag.rules.measures import count

CODE = "TD303"
NAME = "host-tensors-moved-in-step"
CLASS = "h2d"

# Phases in which the batch has already arrived on the device.
INSIDE_STEP = ("forward", "loss", "optimizer")


def check(budget: Budget, transfers: Transfers, ops: Ops, device: DeviceTime) -> Found | None:
    makers = {(line.at.file, line.at.line): line for line in ops.lines if _makes(line)}
    copies = [x for x in transfers.copies if x.direction == "h2d" and _place(x) in makers]
    if not copies:
        return None
    low = exposed(copies, budget, device)
    all_of_them = merged(copies)
    blocked = all_of_them.host_blocked_ns * budget.step_ns / device.step_ns
    made = sum(makers[place].constructions for place in {_place(x) for x in copies})
    return Found(
        summary=(
            f"{all_of_them.count:.0f} tensors a step are made on the host and then"
            f" copied{where(all_of_them.at)}: {duration(max(low, blocked))}"
            f" ({percent(max(low, blocked) / budget.step_ns)} of the step)."
        ),
        evidence=(
            *copy_measures(all_of_them),
            count("tensors built from Python data there", made, "ops", "per_step"),
        ),
        fix=Fix(
            f"Make the tensor on the device{where(all_of_them.at)} (device=x.device at creation),"
            " or once, before the loop (module.register_buffer).",
            "safe",
        ),
        gain=Gain(
            low,
            max(low, blocked),
            "low end: copy time with no compute beside it; high end: also the blocked host.",
            ("h2d", "sync", "launch"),
        ),
        at=all_of_them.at,
    )


def _makes(line: OpLine) -> bool:
    return line.constructions > 0 or line.phase in INSIDE_STEP


def _place(copy: Copy) -> tuple[str, int]:
    return (copy.at.file, copy.at.line) if copy.at else ("", 0)


def fires() -> Evidence:
    made = copy(count=12.0, bytes=4800.0, device_ns=0.02 * MS, exposed_ns=0.5 * MS, at=at(23))
    line = op_line(23, "forward", 24, constructions=12.0)
    step = budget(device=True, compute=8, h2d=0.5, launch=1.5)
    return Evidence().add(step, Transfers(copies=(made,)), ops(line), device_time(10))


def clear() -> Evidence:
    """Only the batch is copied, before the forward pass."""
    step = budget(device=True, compute=8, h2d=2)
    line = op_line(60, "prepare", 2)
    return Evidence().add(step, Transfers(copies=(copy(),)), ops(line), device_time(10))
