"""Gradients are reduced on every micro-batch

## What it measures
Backward passes in a step under DistributedDataParallel, and how many of them reduce the gradients
among the ranks (window `ops`).

## Why it is slow
While gradients are accumulated only their sum matters: reduced after each micro-batch, all of them
cross the network as often as there are micro-batches, and every rank waits for the slowest each
time.

## What to do
`with model.no_sync():` around forward and backward of all micro-batches but the last.

## How the gain is computed
From the communication that nothing overlaps. High end: all of it but one part in as many. Low end:
nothing, if only the last one is not overlapped. Without measured communication none is claimed.

## When this advice is wrong
Two backward passes of different losses that share no parameters are no accumulation. FSDP's
`no_sync` keeps whole gradients on each rank, which takes memory.
"""

from __future__ import annotations

from tdiag.evidence.kinds import Budget, Environment
from tdiag.evidence.store import Evidence
from tdiag.evidence.training import Ddp
from tdiag.model.diagnosis import Fix
from tdiag.rules.base import Abstain, Found, Gain, held
from tdiag.rules.examples import budget, environment
from tdiag.rules.examples_ranks import ddp_settings
from tdiag.rules.measures import bytes_, count, ns
from tdiag.units import size

CODE = "TD905"
NAME = "reduced-on-every-micro-batch"
CLASS = "comm"

# The second reduction is the first that could have been left out.
MIN_SYNCED = 2


def check(budget: Budget, ddp: Ddp | None, environment: Environment) -> Found | None:
    if ddp is None:
        if environment.world_size == 1:
            return None
        raise Abstain("no DistributedDataParallel was seen")
    if ddp.synced is None or ddp.backwards is None:
        raise Abstain("backward passes were not counted (window ops)")
    times = round(ddp.synced)
    if times < MIN_SYNCED:
        return None
    exposed = held(budget, "comm")
    more = (times - 1) * ddp.parameter_bytes
    return Found(
        summary=(
            f"{times} of {ddp.backwards:.0f} backward passes a step reduce the gradients, where"
            f" one would do: {size(more)} more among the ranks."
        ),
        evidence=(
            count("backward passes", ddp.backwards, "ops", "per_step"),
            count("of them reduced", ddp.synced, "ops", "per_step"),
            bytes_("parameters", ddp.parameter_bytes, "probe"),
            ns("communication that nothing overlaps", exposed, "budget"),
        ),
        fix=Fix(
            "with model.no_sync(): around forward and backward of all micro-batches but the last;"
            f" the last of {times} reduces the sum.",
            "review",
        ),
        gain=_gain(exposed, times),
    )


def _gain(exposed: float, times: int) -> Gain | None:
    if not exposed:
        return None
    return Gain(
        0.0,
        exposed * (1 - 1 / times),
        f"high end: one reduction of {times} is left; low end: only the last is not overlapped.",
        ("comm",),
    )


def fires() -> Evidence:
    step = budget(device=True, compute=80, comm=40)
    often = ddp_settings(backwards=4.0, synced=4.0)
    return Evidence().add(step, often, environment(world_size=4))


def clear() -> Evidence:
    """Under no_sync() but for the last."""
    step = budget(device=True, compute=80, comm=10)
    once = ddp_settings(backwards=4.0, synced=1.0)
    return Evidence().add(step, once, environment(world_size=4))
