"""Activations are computed twice with memory to spare

## What it measures
Calls of `torch.utils.checkpoint`, the time inside them, which backward spends again, and the peak
of the memory in use against what there is.

## Why it is slow
Activation checkpointing trades time for memory: what it does not keep it computes a second time in
backward. With most of the memory free, that time buys nothing.

## What to do
Take it off, or off the cheapest blocks first; or use the memory for a larger batch.

## How the gain is computed
The time inside the checkpointed calls, as a share of cProfile's step. High end: all of it. Low end:
half, if some of it has to stay for the memory's sake.

## When this advice is wrong
How much memory the activations would take is not measured: it may be more than what is free. Longer
sequences or larger batches than those seen may need it.
"""

from __future__ import annotations

from tdiag.evidence.kinds import Budget, CallRow, Calls, Environment, System
from tdiag.evidence.store import Evidence
from tdiag.evidence.training import Recomputations
from tdiag.model.diagnosis import Fix
from tdiag.rules.base import Abstain, Found, Gain, held, where
from tdiag.rules.examples import GB, MS, at, budget, environment, system
from tdiag.rules.measures import bytes_, ns
from tdiag.rules.thresholds import MAJORITY_FRAC
from tdiag.units import duration, percent, size

CODE = "TD807"
NAME = "recomputed-with-memory-to-spare"
CLASS = "compute"
AFTER = {
    "TD805": "what is kept from step to step will need the memory that is free now",
}

# Half of the blocks without it is the mildest change worth making; ours.
LOW_FRAC = 0.5


def check(
    budget: Budget,
    recomputations: Recomputations,
    calls: Calls,
    system: System,
    environment: Environment,
) -> Found | None:
    if recomputations.at is None:
        return None
    used, total = _memory(system, environment)
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
            f"Checkpointed blocks{where(recomputations.at)} are computed twice, about"
            f" {duration(cost)} a step ({percent(cost / budget.step_ns)}), with"
            f" {size(total - used)} of {size(total)} of memory free."
        ),
        evidence=(
            ns("inside torch.utils.checkpoint, under cProfile", inside, "calls"),
            ns("a step under cProfile", profiled, "calls"),
            bytes_("memory in use, peak", used, "system"),
            bytes_("memory", total, "system"),
        ),
        fix=Fix(
            f"Call the blocks without torch.utils.checkpoint{where(recomputations.at)}, the"
            f" cheapest first, while the peak stays below {size(total)}.",
            "review",
        ),
        gain=Gain(
            cost * LOW_FRAC,
            cost,
            "high end: nothing is computed twice; low end: half of it has to stay.",
            (component,),
        ),
        at=recomputations.at,
    )


def _memory(system: System, environment: Environment) -> tuple[float, float]:
    """(in use at the peak, all there is): of the device, else of the machine for this program."""
    if environment.device_count == 0:
        used, free = system.rss_bytes, system.ram_available_bytes
        if used is None or free is None:
            raise Abstain("the memory in use was not measured")
        return float(used), float(used + free)
    if environment.device_count != 1:
        raise Abstain("several devices are visible: whose memory was measured cannot be told")
    if not system.gpu_memory_used_bytes or not system.gpu_memory_total_bytes:
        raise Abstain("the device's memory in use was not measured")
    return float(system.gpu_memory_used_bytes), float(system.gpu_memory_total_bytes)


def fires() -> Evidence:
    return _training(used=20 * GB)


def clear() -> Evidence:
    """Without it, the memory may not do."""
    return _training(used=60 * GB)


def _training(used: int) -> Evidence:
    row = CallRow(at=at(30, "block"), calls=12.0, own_ns=100.0 * MS, total_ns=100.0 * MS)
    twice = Recomputations(at=at(44, "forward"), reentrant=False, calls=12.0, forward_ns=24.0 * MS)
    return Evidence().add(
        budget(device=True, compute=60, other=4), twice, Calls(steps=5, rows=(row,)),
        system(gpu_memory_used_bytes=used, gpu_memory_total_bytes=80 * GB),
        environment(device="NVIDIA A100-SXM4-80GB", device_count=1),
    )  # fmt: skip
