"""DDP searches for unused parameters, and there are none

## What it measures
`find_unused_parameters` of DistributedDataParallel, and how many parameters had no gradient after a
step, checked between the windows.

## Why it is slow
After each forward pass the whole graph is searched for parameters that took no part, and the ranks
exchange the result. The reduction of gradients waits for that.

## What to do
Remove `find_unused_parameters=True`. If every step has the same graph, `static_graph=True` finds
unused parameters once.

## How the gain is computed
No gain is claimed: the search time cannot be separated from the rest of the forward pass.

## When this advice is wrong
Parameters that only some batches use (experts, heads of several tasks) need the search, and the
checked steps may not include such a batch. Without the search, DDP then stops with an error that
names them.
"""

from __future__ import annotations

from tdiag.evidence.machine import Environment
from tdiag.evidence.ranks import Ddp
from tdiag.evidence.store import Evidence
from tdiag.evidence.training import Settings
from tdiag.model.diagnosis import Fix
from tdiag.rules.base import Abstain, Found, bytes_, count
from tdiag.rules.examples import ddp_settings, environment
from tdiag.rules.stragglers import abstain_unless_alone
from tdiag.units import size

CODE = "TD904"
NAME = "search-for-unused-parameters"
CLASS = "comm"


def check(
    ddp: Ddp | None, environment: Environment | None, settings: Settings | None
) -> Found | None:
    if ddp is None:
        abstain_unless_alone(environment, "no DistributedDataParallel was seen")
        return None
    if not ddp.find_unused_parameters:
        return None
    if ddp.unused_parameters is None:
        raise Abstain("whether every parameter got a gradient was not checked")
    if ddp.unused_parameters:
        return None
    made = settings.last("torch.nn.parallel.DistributedDataParallel") if settings else None
    return Found(
        summary=(
            "DistributedDataParallel searches for unused parameters every step, but all parameters"
            f" ({size(ddp.parameter_bytes)}) are used."
        ),
        evidence=(
            count("parameters without a gradient", ddp.unused_parameters, "probe"),
            bytes_("parameters", ddp.parameter_bytes, "probe"),
        ),
        fix=Fix(
            "Remove find_unused_parameters=True from DistributedDataParallel. If each step uses"
            " the same parameters in the same order, set static_graph=True.",
            "review",
            "ddp.find_unused_parameters=off",
            action="Remove find_unused_parameters=True",
        ),
        at=made.at if made else None,
    )


def fires() -> Evidence:
    return Evidence().add(ddp_settings(find_unused_parameters=True), environment(world_size=4))


def clear() -> Evidence:
    """Some parameters are unused, so the search is needed."""
    needed = ddp_settings(find_unused_parameters=True, unused_parameters=12)
    return Evidence().add(needed, environment(world_size=4))
