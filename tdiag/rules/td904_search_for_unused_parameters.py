"""Unused parameters are searched for, and there are none

## What it measures
`find_unused_parameters` of DistributedDataParallel, and in the looks between the windows how many
parameters had no gradient after a step.

## Why it is slow
After each forward pass the whole graph is walked for parameters that took no part, and the ranks
tell each other which ones; the reduction of gradients waits for that.

## What to do
Leave `find_unused_parameters` out. If the graph is the same in every step, `static_graph=True`
finds it out once.

## How the gain is computed
None is claimed: the walk's time is not told from the rest of the forward pass.

## When this advice is wrong
Parameters that only some batches use (experts, heads of several tasks) need it, and a few looks may
not have met such a batch: without it, DDP then stops with an error that names them.
"""

from __future__ import annotations

from tdiag.evidence.kinds import Environment
from tdiag.evidence.store import Evidence
from tdiag.evidence.training import Ddp
from tdiag.model.diagnosis import Fix
from tdiag.rules.base import Abstain, Found
from tdiag.rules.examples import environment
from tdiag.rules.examples_ranks import ddp_settings
from tdiag.rules.measures import bytes_, count
from tdiag.units import size

CODE = "TD904"
NAME = "search-for-unused-parameters"
CLASS = "comm"


def check(ddp: Ddp | None, environment: Environment) -> Found | None:
    if ddp is None:
        if environment.world_size == 1:
            return None
        raise Abstain("no DistributedDataParallel was seen")
    if not ddp.find_unused_parameters:
        return None
    if ddp.unused_parameters is None:
        raise Abstain("whether every parameter got a gradient was not looked at")
    if ddp.unused_parameters:
        return None
    return Found(
        summary=(
            "DistributedDataParallel searches for unused parameters in every step, and every"
            f" parameter is used ({size(ddp.parameter_bytes)} of them)."
        ),
        evidence=(
            count("parameters without a gradient", ddp.unused_parameters, "probe"),
            bytes_("parameters", ddp.parameter_bytes, "probe"),
        ),
        fix=Fix(
            "DistributedDataParallel(model, ...) without find_unused_parameters=True; or with"
            " static_graph=True, if each step uses the same parameters in the same order.",
            "review",
        ),
    )


def fires() -> Evidence:
    return Evidence().add(ddp_settings(find_unused_parameters=True), environment(world_size=4))


def clear() -> Evidence:
    """Some are unused, so that it is needed."""
    needed = ddp_settings(find_unused_parameters=True, unused_parameters=12)
    return Evidence().add(needed, environment(world_size=4))
