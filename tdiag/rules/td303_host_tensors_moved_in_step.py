"""Tensors are created on the host and moved in the step

## What it measures
Lines of the forward pass, loss or optimizer that build tensors from Python data, or make one on the
host and move it (`torch.zeros(n).cuda()`), against the host-to-device copies of the step. The batch
is moved before the forward pass and does not count.

## Why it is slow
Each such tensor is filled on the host and copied from pageable memory, and the host waits for it;
it cannot launch work ahead of the device.

## What to do
Create the tensor on the device (`torch.zeros(..., device=x.device)`), or once, as a buffer of the
module.

## How the gain is computed
High end: the copies' blocking time × these tensors' share of the copies by number, and the time in
which the host fills such tensors, as traced: the profiler slows calls, not their work. Low end:
nothing, because these may be the smaller ones; if the step copies no others, half of the copies,
and the filling in proportion to the clean step.

## When this advice is wrong
Values that are new on the host in each step (a schedule, a random crop) must be copied: send them
with the batch.
"""

from __future__ import annotations

import re

from tdiag.evidence.device import DeviceTime, Transfers
from tdiag.evidence.steps import Budget
from tdiag.evidence.store import Evidence
from tdiag.evidence.torch_ops import HostOps, OpLine, Ops
from tdiag.model.diagnosis import Fix
from tdiag.rules.base import Found, Gain, count, held, ns, where
from tdiag.rules.device_waits import copy_measures, exposed, merged
from tdiag.rules.examples import MS, budget, copy, device_time, op_line, ops
from tdiag.rules.thresholds import LOW_END_FRAC
from tdiag.units import per_step, plural

CODE = "TD303"
NAME = "host-tensors-moved-in-step"
CLASS = "h2d"
UNTRIED = "the line that makes the tensor must make it on the device"

# Phases of Ops in which the batch has already arrived on the device.
INSIDE_STEP = ("forward", "loss", "optimizer")
COMPONENTS = ("h2d", "cpu_ops", "sync", "launch", "python_loss")
# Torch calls that make a tensor (on the host by default), and calls that move one.
FACTORIES = (
    "zeros", "ones", "full", "empty", "eye", "arange", "linspace", "rand", "randn", "randint",
    "randperm", "normal",
)  # fmt: skip
MOVES = ("cuda", "to", "xpu")


# The ops that fill a new tensor.
FILLING = re.compile(r"^aten::(fill_|zero_|normal_|uniform_|random_|arange|linspace|randperm|eye)")


def check(
    budget: Budget,
    transfers: Transfers,
    ops: Ops,
    device: DeviceTime,
    host_ops: HostOps | None,
) -> Found | None:
    makers = [line for line in ops.lines if line.phase in INSIDE_STEP and _made(line)]
    copies = [copy for copy in transfers.copies if copy.direction == "h2d"]
    if not makers or not copies:
        return None
    travelling = merged(copies)
    made = sum(_made(line) for line in makers)
    share = min(1.0, made / travelling.count)
    scale = budget.step_ns / device.step_ns
    filling = sum(op.on_host_ns for op in host_ops.ops if FILLING.match(op.name)) if host_ops else 0
    blocked = max(travelling.host_blocked_ns * scale, exposed(copies, budget, device))
    cost = min(share * blocked + filling, held(budget, *COMPONENTS))
    low = blocked * LOW_END_FRAC + filling * scale if share == 1 else 0.0
    worst = max(makers, key=lambda line: line.elapsed_ns)
    return Found(
        summary=(
            f"Creating {plural(round(made), 'tensor')} on the host{where(worst.at)} and copying"
            f" them to the device takes up to {per_step(cost, budget.step_ns)}. The step"
            f" has {plural(round(travelling.count), 'copy', 'copies')} to the device."
        ),
        evidence=(
            count("tensors made on the host in the step", made, "ops", "per_step"),
            *((ns("the host filling tensors", filling, "trace"),) if filling else ()),
            *copy_measures(travelling),
        ),
        fix=Fix(
            f"Create the tensor with device=x.device{where(worst.at)}. Or create it once, before"
            " the loop, with module.register_buffer.",
            "safe",
            action="Create the tensors on the device",
        ),
        gain=Gain(
            low,
            cost,
            "high end: each costs as much as the mean copy, and what the host needs to fill it; low"
            f" end: {'half of the copies' if share == 1 else 'nothing, if they are small'}.",
            COMPONENTS,
        ),
        at=worst.at,
    )


def _made(line: OpLine) -> float:
    """Tensors per step that this line makes on the host: from Python data, or empty ones that it
    then moves."""
    new = sum(line.names.get(name, 0.0) for name in FACTORIES)
    moved = sum(line.names.get(name, 0.0) for name in MOVES)
    return line.constructions + min(new, max(0.0, moved - line.constructions))


def fires() -> Evidence:
    small = copy(count=13.0, bytes=9600.0, device_ns=0.1 * MS, exposed_ns=1.2 * MS)
    line = op_line(23, "forward", 24, constructions=12.0)
    step = budget(device=True, compute=8, h2d=1.2, launch=1.5)
    return Evidence().add(step, Transfers(copies=(small,)), ops(line), device_time(10.7))


def clear() -> Evidence:
    """Only the batch is copied; it is created before the forward pass."""
    step = budget(device=True, compute=8, h2d=2)
    line = op_line(60, "prepare", 2, constructions=1.0)
    return Evidence().add(step, Transfers(copies=(copy(),)), ops(line), device_time(10))
