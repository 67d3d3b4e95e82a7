"""The optimizer's state fills the device's memory

## What it measures
The bytes of the optimizers' state in float32, read between the windows, compared with the peak of
torch's allocated device memory and the device's total. State that is sharded or quantised is not
counted.

## Why it is slow
It costs memory, not time. Adam keeps two numbers of 4 bytes for each parameter, twice the weights
in float32. They limit the batch size.

## What to do
With several ranks under DistributedDataParallel, let each keep a part: `ZeroRedundancyOptimizer`
shards the state, FSDP2 (`fully_shard`) weights and gradients as well. On one device, keep the state
in 8 bits: `AdamW8bit` and others of bitsandbytes or torchao.

## How the gain is computed
No time is predicted, only memory: all but one rank's part of the state, or three quarters of it in
8 bits. Reported if that is a quarter of the memory in use, and memory is nearly full.

## When this advice is wrong
8 bits change the updates slightly: bitsandbytes' authors found the same results, with a stable
embedding layer for language models. Compare the loss. Sharding adds a broadcast of the updated
weights to each step.
"""

from __future__ import annotations

from tdiag.evidence.machine import Environment
from tdiag.evidence.memory import DeviceMemory
from tdiag.evidence.ranks import Ddp
from tdiag.evidence.store import Evidence
from tdiag.evidence.training import Optimizer, Optimizers
from tdiag.model.diagnosis import Fix
from tdiag.model.threshold import Threshold
from tdiag.rules.base import Abstain, Found, bytes_, where
from tdiag.rules.examples import GB, device_holds, environment, optimizers
from tdiag.rules.memory_in_use import PEAK, device_memory
from tdiag.rules.thresholds import FREED_MEMORY_FRAC, USABLE_MEMORY_FRAC
from tdiag.units import percent, size

CODE = "TD813"
NAME = "optimizer-state-fills-memory"
CLASS = "memory"

LEFT_IN_8_BITS_FRAC = Threshold(
    0.25,
    "of the state in float32",
    'Dettmers et al., "8-bit Optimizers via Block-wise Quantization" (2022): 8 of 32 bits, and one'
    " scale for each block of 2,048 values.",
)
# torch's optimizers that have such a form in bitsandbytes.
EIGHT_BITS = {
    "Adam": "Adam8bit", "AdamW": "AdamW8bit", "SGD": "SGD8bit", "RMSprop": "RMSprop8bit",
    "Adagrad": "Adagrad8bit",
}  # fmt: skip
SHARDS = "ZeroRedundancyOptimizer"


def check(
    optimizers: Optimizers, environment: Environment, memory: DeviceMemory | None, ddp: Ddp | None
) -> Found | None:
    if environment.device_count == 0:
        return None
    known = [one for one in optimizers.optimizers if one.state_bytes]
    if not known:
        if any(one.state_bytes is None for one in optimizers.optimizers):
            raise Abstain("the optimizer's state was not read")
        return None
    most = max(known, key=lambda one: one.state_bytes or 0)
    held = most.state_bytes or 0
    used, total = device_memory(memory)
    ranks = environment.world_size
    shards = ranks > 1 and ddp is not None and all(x.name != SHARDS for x in optimizers.optimizers)
    left = 1 / ranks if shards else float(LEFT_IN_8_BITS_FRAC)
    freed = held * (1 - left)
    smaller = shards or most.name in EIGHT_BITS
    if not smaller or freed < FREED_MEMORY_FRAC * used or used < USABLE_MEMORY_FRAC * total:
        return None
    return Found(
        summary=(
            f"{most.name}'s state{where(most.created_at)} takes {size(held)},"
            f" {percent(held / used)} of the device memory in use ({size(used)} of {size(total)})."
        ),
        evidence=(
            bytes_("state of the optimizer", held, "probe"),
            bytes_(PEAK, used, "probe"),
            bytes_("device memory", total, "probe"),
        ),
        fix=_sharded(most, ranks, freed) if shards else _quantised(most, freed),
        at=most.created_at,
    )


def _sharded(optimizer: Optimizer, ranks: int, freed: float) -> Fix:
    torchs = "torch.optim." if optimizer.name in EIGHT_BITS else ""
    return Fix(
        f"Let each of the {ranks} ranks keep a part of the state{where(optimizer.created_at)}:"
        f" {SHARDS} with DistributedDataParallel, or fully_shard (FSDP2), which also shards weights"
        f" and gradients. This frees {size(freed)} on each device.",
        "review",
        action="Shard the optimizer's state over the ranks",
        code=(
            f"from torch.distributed.optim import {SHARDS}\n\n"
            f"optimizer = {SHARDS}(\n"
            f"    model.parameters(), optimizer_class={torchs}{optimizer.name}, lr=lr\n)"
        ),
    )


def _quantised(optimizer: Optimizer, freed: float) -> Fix:
    name = EIGHT_BITS[optimizer.name]
    return Fix(
        f"Keep the state in 8 bits: bitsandbytes.optim.{name} instead of {optimizer.name}"
        f"{where(optimizer.created_at)}. This frees {size(freed)}. Compare the loss; embeddings may"
        " need 32 bits (bitsandbytes.nn.StableEmbedding).",
        "manual",
        action="Keep the optimizer's state in 8 bits",
        code=f"optimizer = bitsandbytes.optim.{name}(model.parameters(), lr=lr)",
    )


def fires() -> Evidence:
    """Adam's state of 5.6 billion parameters on one device."""
    return _training(used=78 * GB)


def clear() -> Evidence:
    """The same state on a device with memory to spare."""
    return _training(used=60 * GB)


def _training(used: int) -> Evidence:
    (plain,) = optimizers("AdamW", lr=1e-4).optimizers
    made = Optimizer(name=plain.name, created_at=plain.created_at, tensors=plain.tensors,
                     config=plain.config, state_bytes=45 * GB)  # fmt: skip
    device = environment(device="NVIDIA A100-SXM4-80GB", device_count=1)
    return Evidence().add(Optimizers(optimizers=(made,)), device_holds(used), device)
