"""Gradients are reduced on every micro-batch

## What it measures
Backward passes per step under DistributedDataParallel, and how many of them reduce the gradients
among the ranks (window `ops`).

## Why it is slow
While gradients accumulate, only their sum matters. If they are reduced after each micro-batch, all
gradients cross the network once per micro-batch, and every rank waits for the slowest each time.

## What to do
Run forward and backward of all micro-batches but the last under `with model.no_sync():`.

## How the gain is computed
From the communication that is not overlapped. High end: all but one reduction's share. Low end:
nothing, if only the last one is not overlapped. Without measured communication, none is claimed.

## When this advice is wrong
Two backward passes of different losses without shared parameters are not accumulation. FSDP's
`no_sync` keeps whole gradients on each rank, which takes memory.
"""

from __future__ import annotations

from tdiag.evidence.machine import Environment
from tdiag.evidence.ranks import REDUCER, Ddp
from tdiag.evidence.steps import Budget
from tdiag.evidence.store import Evidence
from tdiag.evidence.training import Modules
from tdiag.model.diagnosis import Fix
from tdiag.model.place import Place
from tdiag.model.threshold import Threshold
from tdiag.rules.base import Abstain, Found, Gain, bytes_, count, held, ns
from tdiag.rules.examples import budget, ddp_settings, environment
from tdiag.rules.stragglers import abstain_unless_alone
from tdiag.units import size

CODE = "TD905"
NAME = "reduced-on-every-micro-batch"
CLASS = "comm"

MIN_SYNCED = Threshold(
    2, "reductions per step", "By definition: the second reduction is the first that is not needed."
)


def check(
    budget: Budget, ddp: Ddp | None, environment: Environment, modules: Modules | None
) -> Found | None:
    if ddp is None:
        abstain_unless_alone(environment, "no DistributedDataParallel was seen")
        return None
    if ddp.synced is None or ddp.backwards is None:
        raise Abstain("backward passes were not counted (window ops)")
    times = round(ddp.synced)
    if times < MIN_SYNCED:
        return None
    exposed = held(budget, "comm")
    more = (times - 1) * ddp.parameter_bytes
    return Found(
        summary=(
            f"{times} of {ddp.backwards:.0f} backward passes per step reduce the gradients, where"
            f" one is enough. The ranks exchange {size(more)} more."
        ),
        evidence=(
            count("backward passes", ddp.backwards, "ops", "per_step"),
            count("of them reduced", ddp.synced, "ops", "per_step"),
            bytes_("parameters", ddp.parameter_bytes, "probe"),
            ns("communication not overlapped", exposed, "budget"),
        ),
        fix=Fix(
            "Run forward and backward of all micro-batches but the last under model.no_sync()."
            f" The last of {times} reduces the sum.",
            "review",
            "ddp.no_sync",
            action="Reduce gradients on the last micro-batch only",
            code="for i, batch in enumerate(micro_batches):\n"
            "    last = i == len(micro_batches) - 1\n"
            "    with contextlib.nullcontext() if last else model.no_sync():\n"
            "        loss_fn(model(batch)).backward()",
        ),
        gain=_gain(exposed, times),
        at=_called_at(modules),
    )


def _called_at(modules: Modules | None) -> Place | None:
    """The line that calls the model: its forward and backward should run under no_sync()."""
    models = [m for m in modules.modules if m.name == REDUCER] if modules else []
    return models[0].trained_at if models else None


def _gain(exposed: float, times: int) -> Gain | None:
    if not exposed:
        return None
    return Gain(
        0.0,
        exposed * (1 - 1 / times),
        f"high end: one reduction of {times} is left; low end: nothing, if the others overlap.",
        ("comm",),
    )


def fires() -> Evidence:
    step = budget(device=True, compute=80, comm=40)
    often = ddp_settings(backwards=4.0, synced=4.0)
    return Evidence().add(step, often, environment(world_size=4))


def clear() -> Evidence:
    """All but the last under no_sync()."""
    step = budget(device=True, compute=80, comm=10)
    once = ddp_settings(backwards=4.0, synced=1.0)
    return Evidence().add(step, once, environment(world_size=4))
