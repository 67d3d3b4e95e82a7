"""Different ranks are late at different steps

## What it measures
The same collectives in the traces of all ranks; on a CPU, each rank's waiting time in the
collectives of each clean step. A collective ends for all ranks at once, so it is shortest on the
rank that came last; its longer duration on another rank is waiting. The finding reports the waiting
time per step, without concurrent computation, of the rank that waits least: it is late itself at
some steps, and others are late at other steps (TD902 is about a rank that is late overall). The
place is where a rank's batches are chosen: its loader, or the line before the forward whose torch
calls take longest.

## Why it is slow
Every step takes as long as its slowest rank: the mean of the maximum, not the maximum of the means.
With more ranks, a long step of one of them is more likely.

## What to do
Give all ranks similar work at every step: batches of similar length (sorted or bucketed by length
across ranks, or packed), equal numbers of samples, garbage collection at the same step on all
ranks.

## How the gain is computed
High end: all of this waiting, if all ranks arrive together. Low end: nothing, if no order of the
data makes steps similar. On a CPU, a wait of less than a fifth of the step gets no gain.

## When this advice is wrong
A few traced steps may have caught rare moments. The hosts or the network may be late instead of the
work: compare the budgets of the ranks' steps.
"""

from __future__ import annotations

from tdiag.evidence.device import DeviceTime
from tdiag.evidence.feeding import Loaders
from tdiag.evidence.machine import Environment
from tdiag.evidence.ranks import Communication, Ranks
from tdiag.evidence.steps import Budget, TracedSteps
from tdiag.evidence.store import Evidence
from tdiag.evidence.torch_ops import Ops
from tdiag.model.diagnosis import Fix
from tdiag.model.place import Place
from tdiag.rules.base import Abstain, Found, Gain, count, held, ns, where
from tdiag.rules.examples import MS, budget, changing_late_rank, device_time
from tdiag.rules.stragglers import abstain_unless_alone, changing_waits
from tdiag.rules.thresholds import LARGE_WAIT_FRAC

CODE = "TD906"
NAME = "late-rank-changes"
CLASS = "comm"
UNTRIED = "needs batches of similar cost, which only the dataset knows"
AFTER = {"TD902": "a rank that is late overall makes the others wait at every step"}


def check(
    budget: Budget,
    device: DeviceTime | None,
    communication: Communication | None,
    ranks: Ranks | None,
    steps: TracedSteps | None,
    environment: Environment | None,
    loaders: Loaders | None,
    ops: Ops | None,
) -> Found | None:
    if ranks is None:
        abstain_unless_alone(environment, "only one rank was traced")
        return None
    if ranks.changing_ns is None:
        raise Abstain("the ranks' collectives could not be paired")
    step_ns = device.step_ns if device is not None and budget.has_device else budget.step_ns
    sentence = changing_waits(ranks, step_ns)
    if not sentence:
        return None
    cost = ranks.changing_ns * budget.step_ns / step_ns
    seen = communication.exposed_ns if communication is not None else held(budget, "comm")
    exposed = max(seen, ranks.changing_ns)
    source, at = ranks.source, _dealt_at(loaders, ops)
    return Found(
        summary=sentence,
        evidence=(
            ns("waiting for changing ranks", ranks.changing_ns, source),
            ns("exposed if all arrive together", ranks.shortest_ns or 0.0, source),
            ns("exposed communication", seen, source),
            count("ranks", len(ranks.ranks), source),
            *((count("steps", steps.count, "trace"),) if steps and source == "trace" else ()),
        ),
        fix=Fix(
            f"Give all ranks batches of similar cost at every step{where(at)}: sort or bucket"
            " samples by length across ranks, draw lengths with the same seed on all, or pack"
            " sequences to one length. Collect garbage at the same step on all ranks.",
            "review",
            action="Give all ranks batches of similar cost",
            code="gc.freeze()\ngc.disable()\nif step % 1000 == 0:  # the same step on all ranks\n"
            "    gc.collect()",
        ),
        gain=Gain(
            0.0,
            cost,
            "high end: all ranks arrive together; low end: nothing, if no order does that.",
            ("comm",),
            high_cuts={"comm": 1 - ranks.changing_ns / exposed},
        )
        if budget.has_device or cost >= LARGE_WAIT_FRAC * budget.step_ns
        else None,
        at=at,
    )


def _dealt_at(loaders: Loaders | None, ops: Ops | None) -> Place | None:
    """Where the batches of a rank are chosen: its loader, or else the line before the forward whose
    torch calls take longest."""
    if loaders is not None and (loader := loaders.train()):
        return loader.created_at
    making = [x for x in (ops.lines if ops else ()) if x.phase == "prepare"]
    return max(making, key=lambda x: x.elapsed_ns).at if making else None


def fires() -> Evidence:
    """Each of two ranks is late by 40 ms at every other step."""
    found = Communication(total_ns=30 * MS, exposed_ns=30 * MS, count=1.0)
    return Evidence().add(
        budget(device=True, compute=70, comm=30),
        found,
        device_time(100),
        changing_late_rank(10, 20),
    )


def clear() -> Evidence:
    """The ranks arrive together."""
    found = Communication(total_ns=30 * MS, exposed_ns=30 * MS, count=1.0)
    return Evidence().add(
        budget(device=True, compute=70, comm=30), found, device_time(100), changing_late_rank(30, 0)
    )
