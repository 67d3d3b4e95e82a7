"""The logits of a large vocabulary fill the memory

## What it measures
From recorded shapes: the bytes of the logits that the cross entropy takes (rows × classes),
compared with the peak memory in use and the total memory: of the device, or without one, of this
program and the machine.

## Why it is slow
It costs memory, not time. In the backward of the loss, three tensors as large as the logits exist
at once: the log-probabilities, their gradient, and the gradient of the logits; under autocast all
in float32. They limit the batch size.

## What to do
Compute projection and loss in chunks of rows, so that only one chunk's logits exist at a time:
`torch.nn.functional.linear_cross_entropy` with `options=torch.nn.LinearCrossEntropyOptions()`
(torch 2.13), or a kernel that fuses both, such as Liger Kernel's. Leave out rows whose target is
ignored (`ignore_index`) before the projection.

## How the gain is computed
No time is predicted, only memory: at most these three tensors. Reported if they take a quarter of
the memory in use, and memory is nearly full.

## When this advice is wrong
Chunks save memory and may cost time: on a CPU the chunked loss of torch 2.13 took 1.9 to 4.9 times
as long as the plain loss (three shapes, 32,000 and 50,257 classes). This was not measured on a
device. Compiled losses record no shapes, so the rule does not judge them.
"""

from __future__ import annotations

import math

from tdiag.evidence.machine import Environment, System
from tdiag.evidence.memory import DeviceMemory
from tdiag.evidence.roofline import OpWork, Work
from tdiag.evidence.store import Evidence
from tdiag.model.diagnosis import Fix
from tdiag.model.threshold import Threshold
from tdiag.rules.base import Found, bytes_, count, version, where
from tdiag.rules.examples import GB, MS, at, device_holds, environment
from tdiag.rules.memory_in_use import PEAK, memory
from tdiag.rules.thresholds import FREED_MEMORY_FRAC, USABLE_MEMORY_FRAC
from tdiag.units import count as counted
from tdiag.units import percent, size

CODE = "TD812"
NAME = "logits-fill-memory"
CLASS = "memory"

SOFTMAX = "aten::_log_softmax"
BYTES_PER_NUMBER = Threshold(
    4,
    "bytes",
    "By definition of float32; autocast also computes log_softmax in float32.",
)
ALIVE = Threshold(
    3,
    "tensors as large as the logits",
    "By torch's own formula: the backward of log_softmax reads its result and the gradient of that,"
    " and writes the gradient of the logits.",
)
CHUNKED_SINCE = Threshold(
    13, "(minor release of torch 2)", "torch 2.13 documents options of linear_cross_entropy."
)


def check(
    work: Work,
    environment: Environment,
    system: System | None,
    allocated: DeviceMemory | None,
) -> Found | None:
    losses = [op for op in work.ops if op.name == SOFTMAX and op.dtype == "float32" and op.dims]
    if not losses:
        return None
    largest = max(losses, key=_bytes)
    freed = ALIVE * _bytes(largest)
    used, total = memory(system, environment, allocated)
    if freed < FREED_MEMORY_FRAC * used or used < USABLE_MEMORY_FRAC * total:
        return None
    *rows, classes = largest.dims[0]
    return Found(
        summary=(
            f"The loss takes logits of {counted(math.prod(rows))} × {counted(classes)} in"
            f" float32{where(largest.at)}: {size(_bytes(largest))}. Backward holds"
            f" three such tensors, {percent(freed / used)} of the memory in use ({size(used)} of"
            f" {size(total)})."
        ),
        evidence=(
            count("rows of the logits", math.prod(rows), "trace"),
            count("classes", classes, "trace"),
            bytes_("the logits", _bytes(largest), "trace"),
            bytes_("three such tensors, in backward", freed, "trace"),
            bytes_(PEAK if environment.device_count else "memory in use, peak", used, "probe"),
            bytes_("total memory", total, "probe"),
        ),
        fix=_fix(freed, environment.torch, largest),
        at=largest.at,
    )


def _bytes(op: OpWork) -> float:
    return float(math.prod(op.dims[0]) * BYTES_PER_NUMBER)


def _fix(freed: float, torch: str, op: OpWork) -> Fix:
    text = f"Compute projection and loss{where(op.at)} in chunks of rows. This frees {size(freed)}"
    if version(torch) < (2, CHUNKED_SINCE):
        return Fix(
            f"{text} at most. Split rows and targets, and run each chunk's projection and loss"
            " under torch.utils.checkpoint; or use a fused loss, such as Liger Kernel's.",
            "review",
            action="Compute the loss in chunks",
        )
    return Fix(
        f"{text} at most, and the step may take longer.",
        "review",
        action="Compute the loss in chunks",
        code=(
            "loss = torch.nn.functional.linear_cross_entropy(\n"
            "    hidden, model.head.weight, targets,  # hidden: rows × features, before the head\n"
            "    options=torch.nn.LinearCrossEntropyOptions(),\n"
            ")"
        ),
    )


def fires() -> Evidence:
    """8 × 4,096 tokens with 128,256 classes: three tensors of 16.8 GB."""
    return _training(rows=8 * 4096, used=76 * GB)


def clear() -> Evidence:
    """The same loss with memory to spare."""
    return _training(rows=8 * 4096, used=60 * GB)


def _training(rows: int, used: int) -> Evidence:
    loss = OpWork(
        name=SOFTMAX, dims=((rows, 128_256),), dtype="float32", count=1.0, flops=0.0, moved=3e10,
        host_ns=0.1 * MS, device_ns=20.0 * MS, at=at(52, "loss_of"),
    )  # fmt: skip
    return Evidence().add(
        Work(ops=(loss,), calls=400.0), device_holds(used),
        environment(device="NVIDIA A100-SXM4-80GB", device_count=1, torch="2.13.0"),
    )  # fmt: skip
