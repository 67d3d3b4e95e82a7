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
half, if some of it must stay because of memory. On a device no gain is claimed: cProfile times the
host, which only issues the work there.

## When this advice is wrong
The memory that the activations would take is not measured and may exceed what is free. Longer
sequences or larger batches than those seen may need checkpointing.
"""

from __future__ import annotations

from tdiag.evidence.machine import Environment, System
from tdiag.evidence.memory import DeviceMemory
from tdiag.evidence.steps import Budget
from tdiag.evidence.store import Evidence
from tdiag.evidence.torch_ops import CallRow, Calls
from tdiag.evidence.training import Recomputations
from tdiag.model.diagnosis import Fix
from tdiag.model.threshold import MAJORITY_FRAC
from tdiag.rules.base import Abstain, Found, Gain, bytes_, held, ns, where
from tdiag.rules.examples import GB, MS, at, budget, environment, system
from tdiag.rules.memory_in_use import memory
from tdiag.rules.thresholds import LOW_END_FRAC
from tdiag.units import per_step, size

CODE = "TD807"
NAME = "recomputed-with-memory-to-spare"
CLASS = "compute"
AFTER = {"TD805": "tensors kept from step to step will need the memory that is free now"}


def check(
    budget: Budget,
    recomputations: Recomputations,
    calls: Calls,
    environment: Environment,
    system: System | None,
    device_memory: DeviceMemory | None,
) -> Found | None:
    if recomputations.at is None:
        return None
    source = "probe" if environment.device_count else "system"
    used, total = memory(system, environment, device_memory)
    if used > MAJORITY_FRAC * total:
        return None
    profiled = sum(row.own_ns for row in calls.rows)
    inside = recomputations.forward_ns
    if inside is None or not profiled:
        raise Abstain("the time inside torch.utils.checkpoint was not profiled (window calls)")
    cost = min(inside / profiled * budget.step_ns, held(budget, "backward"))
    takes = "" if budget.has_device else f", which takes about {per_step(cost, budget.step_ns)}"
    gain = Gain(
        cost * LOW_END_FRAC,
        cost,
        "high end: nothing is computed twice; low end: half of it must stay.",
        ("backward",),
    )
    return Found(
        summary=(
            f"Checkpointed blocks{where(recomputations.at)} are computed twice{takes}, although"
            f" {size(total - used)} of {size(total)} of memory are free."
        ),
        evidence=(
            ns("inside torch.utils.checkpoint, under cProfile", inside, "calls"),
            ns("a step under cProfile", profiled, "calls"),
            bytes_("memory in use, peak", used, source),
            bytes_("memory", total, source),
        ),
        fix=Fix(
            f"Call the blocks without torch.utils.checkpoint{where(recomputations.at)}, the"
            f" cheapest first, while peak memory stays below {size(total)}.",
            "review",
            "torch.checkpoint=off",
            action="Remove activation checkpointing",
        ),
        gain=None if budget.has_device else gain,
        at=recomputations.at,
    )


def fires() -> Evidence:
    return _training(used=8 * GB)


def clear() -> Evidence:
    """Without it, memory might not suffice."""
    return _training(used=24 * GB)


def _training(used: int) -> Evidence:
    row = CallRow(at=at(30, "block"), calls=12.0, own_ns=100.0 * MS, total_ns=100.0 * MS)
    twice = Recomputations(at=at(44, "forward"), reentrant=False, calls=12.0, forward_ns=24.0 * MS)
    return Evidence().add(
        budget(forward=20, backward=60, other=4), twice, Calls(steps=5, rows=(row,)),
        system(rss_bytes=used, ram_available_bytes=32 * GB - used), environment(),
    )  # fmt: skip
