"""DDP sends buffers in each step that never change

## What it measures
The bytes of the model's buffers that DistributedDataParallel sends from rank 0 to all others before
each forward, and how many of these no step has changed, checked between the windows. And the share
of the samples in which the training thread sends them.

## Why it is slow
DDP takes each registered buffer for a state that steps change, like the averages of a batch norm. A
table, a mask or a set of anchors is sent all the same, as often as the gradients are.

## What to do
`DistributedDataParallel(model, broadcast_buffers=False)`; torch 2.13 calls the argument
`forward_sync_buffers`. If some buffers do change, keep the constant ones out of the model, or list
their names in `model._ddp_params_and_buffers_to_ignore` before it is wrapped.

## How the gain is computed
The share of the samples in sending × the constant buffers' share of the bytes. Low end: half of
that, because a rank that is late is then waited for elsewhere.

## When this advice is wrong
If ranks are given different tables on purpose, rank 0's replaces them today. Batch norms keep
their averages for each rank then; only evaluation uses them.
"""

from __future__ import annotations

from msgspec.structs import replace

from tdiag.evidence.machine import Environment
from tdiag.evidence.ranks import Ddp
from tdiag.evidence.sampled import CallFrame, CallTrees, Stacks
from tdiag.evidence.steps import Budget
from tdiag.evidence.store import Evidence
from tdiag.evidence.training import Settings
from tdiag.model.diagnosis import Fix
from tdiag.model.threshold import MAJORITY_FRAC
from tdiag.rules.base import Abstain, Found, Gain, bytes_, frac, known_to, sampling_range
from tdiag.rules.callers import frac_of_frames
from tdiag.rules.examples import MB, budget, call_tree, ddp_settings, environment, stacks
from tdiag.rules.loop_lines import check_samples
from tdiag.rules.stragglers import abstain_unless_alone
from tdiag.rules.thresholds import LOW_END_FRAC
from tdiag.units import percent, size

CODE = "TD908"
NAME = "constant-buffers-sent"
CLASS = "comm"


def check(
    budget: Budget,
    ddp: Ddp | None,
    environment: Environment | None,
    settings: Settings | None,
    stacks: Stacks | None,
    trees: CallTrees | None,
) -> Found | None:
    if ddp is None:
        abstain_unless_alone(environment, "no DistributedDataParallel was seen")
        return None
    if not ddp.buffer_bytes or budget.has_device:  # there the host only issues it
        return None
    constant = ddp.constant_buffer_bytes / ddp.buffer_bytes
    if constant < MAJORITY_FRAC:
        return None
    if stacks is None:
        raise Abstain("no stacks were sampled")
    check_samples(stacks)
    sending = frac_of_frames(_sends, trees)
    least, most = known_to(sending, stacks.samples)
    made = settings.last("torch.nn.parallel.DistributedDataParallel") if settings else None
    return Found(
        summary=(
            f"DistributedDataParallel sends {size(ddp.buffer_bytes)} of buffers before each"
            f" forward, {percent(sending)} of the step, though no step changes"
            f" {size(ddp.constant_buffer_bytes)} of them. The gradients are"
            f" {size(ddp.parameter_bytes)}."
        ),
        evidence=(
            bytes_("buffers sent in each step", ddp.buffer_bytes, "probe"),
            bytes_("of them never changed", ddp.constant_buffer_bytes, "probe"),
            bytes_("gradients", ddp.parameter_bytes, "probe"),
            frac("samples in sending", sending, "sample"),
        ),
        fix=Fix(
            "Give DistributedDataParallel broadcast_buffers=False (torch 2.13:"
            " forward_sync_buffers=False): no rank needs what never changes.",
            "review",
            "ddp.broadcast_buffers=off",
            action="Do not send constant buffers in each step",
            code="model = DistributedDataParallel(model, broadcast_buffers=False)",
        ),
        gain=Gain(
            least * constant * budget.step_ns * LOW_END_FRAC,
            most * constant * budget.step_ns,
            f"high end: sending takes no time; low end: half of that, as late ranks are waited for"
            f" elsewhere. {sampling_range(stacks.samples, least, most)}.",
            ("comm", "forward"),
        ),
        at=made.at if made else None,
    )


def _sends(frame: CallFrame) -> bool:
    ours = frame.file.endswith("torch/nn/parallel/distributed.py")
    return ours and frame.name.endswith("_sync_buffers")


def fires() -> Evidence:
    """A table of 25 MB is a buffer of the model."""
    return _sending(constant=25 * MB)


def clear() -> Evidence:
    """The averages of batch norms change in each step."""
    return _sending(constant=0)


def _sending(constant: int) -> Evidence:
    train, inside = call_tree(("train", 60, 0.4), ("_sync_buffers", 0, 0.2)).training
    file = "site-packages/torch/nn/parallel/distributed.py"
    library = replace(inside, file=file, user=False)
    ddp = ddp_settings(buffer_bytes=25 * MB, constant_buffer_bytes=constant)
    trees = CallTrees(training=(train, library), workers=())
    step = budget(forward=20, backward=50, comm=20)
    return Evidence().add(step, ddp, environment(world_size=2), stacks(), trees)
