"""Activations are recomputed although memory is free

## What it measures
Calls of `torch.utils.checkpoint`, the time inside them (backward spends it again), and peak memory
against the total.

## Why it is slow
Activation checkpointing trades time for memory: it computes a second time in backward what it does
not keep. With most of the memory free, that time buys nothing.

## What to do
Remove it, starting with the cheapest blocks; or use the memory for a larger batch.

## How the gain is computed
The time inside the checkpointed calls as a share of cProfile's step. High end: all of it. Low end:
half, if some of it must stay because of memory.

## When this advice is wrong
The memory that the activations would take is not measured and may exceed what is free. Longer
sequences or larger batches than those seen may need checkpointing.
"""

from __future__ import annotations

from tdiag.evidence.machine import Environment, System
from tdiag.evidence.ops import CallRow, Calls
from tdiag.evidence.steps import Budget
from tdiag.evidence.store import Evidence
from tdiag.evidence.training import Recomputations
from tdiag.model.diagnosis import Fix
from tdiag.rules.base import Abstain, Found, Gain, held, where
from tdiag.rules.examples import GB, MS, at, budget, environment, system
from tdiag.rules.measures import bytes_, ns
from tdiag.rules.memory import memory
from tdiag.rules.thresholds import LOW_END_FRAC, MAJORITY_FRAC
from tdiag.units import per_step, size

CODE = "TD807"
NAME = "recomputed-with-memory-to-spare"
CLASS = "compute"
AFTER = {"TD805": "tensors kept from step to step will need the memory that is free now"}


def check(
    budget: Budget,
    recomputations: Recomputations,
    calls: Calls,
    system: System,
    environment: Environment,
) -> Found | None:
    if recomputations.at is None:
        return None
    used, total = memory(system, environment)
    if used > MAJORITY_FRAC * total:
        return None
    profiled = sum(row.own_ns for row in calls.rows)
    inside = recomputations.forward_ns
    if inside is None or not profiled:
        raise Abstain("the time inside torch.utils.checkpoint was not profiled (window calls)")
    component = "compute" if budget.has_device else "backward"
    cost = min(inside / profiled * budget.step_ns, held(budget, component))
    return Found(
        summary=(
            f"Checkpointed blocks{where(recomputations.at)} are computed twice, which takes about"
            f" {per_step(cost, budget.step_ns)}, although {size(total - used)} of {size(total)} of"
            " memory are free."
        ),
        evidence=(
            ns("inside torch.utils.checkpoint, under cProfile", inside, "calls"),
            ns("a step under cProfile", profiled, "calls"),
            bytes_("memory in use, peak", used, "system"),
            bytes_("memory", total, "system"),
        ),
        fix=Fix(
            f"Call the blocks without torch.utils.checkpoint{where(recomputations.at)}, the"
            f" cheapest first, while peak memory stays below {size(total)}.",
            "review",
            action="Remove activation checkpointing",
        ),
        gain=Gain(
            cost * LOW_END_FRAC,
            cost,
            "high end: nothing is computed twice; low end: half of it must stay.",
            (component,),
        ),
        at=recomputations.at,
    )


def fires() -> Evidence:
    return _training(used=20 * GB)


def clear() -> Evidence:
    """Without it, memory might not suffice."""
    return _training(used=60 * GB)


def _training(used: int) -> Evidence:
    row = CallRow(at=at(30, "block"), calls=12.0, own_ns=100.0 * MS, total_ns=100.0 * MS)
    twice = Recomputations(at=at(44, "forward"), reentrant=False, calls=12.0, forward_ns=24.0 * MS)
    return Evidence().add(
        budget(device=True, compute=60, other=4), twice, Calls(steps=5, rows=(row,)),
        system(gpu_memory_used_bytes=used, gpu_memory_total_bytes=80 * GB),
        environment(device="NVIDIA A100-SXM4-80GB", device_count=1),
    )  # fmt: skip
