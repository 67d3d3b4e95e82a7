"""The ranks wait for one another by turns

## What it measures
The same collectives in the traces of all ranks; on a CPU, what each rank waits in the collectives
of each clean step. A collective ends for all ranks at once, so the
rank that came last to it has the shortest one, and what it lasts on another rank beyond that is
waiting. Reported is what even the rank that waits least waits per step, with no compute beside it:
it is late at some steps itself, and others at others (TD902 is about a rank that is late on the
whole).

## Why it is slow
Every step takes as long as its slowest rank: the mean of the largest, not the largest mean. The
more ranks, the surer one of them has a long step.

## What to do
Give all ranks work of like size at every step: batches of like length (sorted or bucketed by
length across ranks, sequences packed to one length), the same number of samples, Python's garbage
collected on all ranks at the same step.

## How the gain is computed
High end: that waiting, if all ranks arrive together. Low end: nothing, where no order of the data
makes steps alike.

## When this advice is wrong
A few traced steps may have caught moments that are rare. What is late by turns may be the hosts or
the network instead of the work: compare what the ranks' steps hold.
"""

from __future__ import annotations

from tdiag.evidence.device import Communication, DeviceTime, Ranks, TracedSteps
from tdiag.evidence.kinds import Budget, Environment
from tdiag.evidence.store import Evidence
from tdiag.model.diagnosis import Fix
from tdiag.rules.base import Abstain, Found, Gain, held
from tdiag.rules.examples import MS, budget, device_time
from tdiag.rules.examples_ranks import late_by_turns
from tdiag.rules.measures import count, ns
from tdiag.rules.stragglers import waits_by_turns

CODE = "TD906"
NAME = "ranks-late-by-turns"
CLASS = "comm"
AFTER = {"TD902": "a rank that is late on the whole makes the others wait at every step"}


def check(
    budget: Budget,
    device: DeviceTime | None,
    communication: Communication | None,
    ranks: Ranks | None,
    steps: TracedSteps | None,
    environment: Environment | None,
) -> Found | None:
    if ranks is None:
        if environment is not None and environment.world_size == 1:
            return None
        raise Abstain("only one rank was traced")
    if ranks.by_turns_ns is None:
        raise Abstain("the ranks' collectives could not be paired")
    step_ns = device.step_ns if device is not None and budget.has_device else budget.step_ns
    sentence = waits_by_turns(ranks, step_ns)
    if not sentence:
        return None
    cost = ranks.by_turns_ns * budget.step_ns / step_ns
    seen = communication.exposed_ns if communication is not None else held(budget, "comm")
    exposed = max(seen, ranks.by_turns_ns)
    source = ranks.source
    return Found(
        summary=sentence,
        evidence=(
            ns("waiting by turns", ranks.by_turns_ns, source),
            ns("exposed if all came together", ranks.shortest_ns or 0.0, source),
            ns("exposed communication", seen, source),
            count("ranks", len(ranks.ranks), source),
            *((count("steps", steps.count, "trace"),) if steps and source == "trace" else ()),
        ),
        fix=Fix(
            "Batches of like cost on all ranks at every step: sort or bucket samples by length"
            " across ranks, or pack sequences to one length; gc.freeze() and gc.collect() at the"
            " same step on all ranks.",
            "review",
        ),
        gain=Gain(
            0.0,
            cost,
            "high end: all ranks arrive together; low end: no order of the data makes them.",
            ("comm",),
            high_cuts={"comm": 1 - ranks.by_turns_ns / exposed},
        ),
    )


def fires() -> Evidence:
    """Each of two ranks is late by 40 ms at every other step."""
    found = Communication(total_ns=30 * MS, exposed_ns=30 * MS, count=1.0)
    return Evidence().add(
        budget(device=True, compute=70, comm=30), found, device_time(100), late_by_turns(10, 20)
    )


def clear() -> Evidence:
    """They come together."""
    found = Communication(total_ns=30 * MS, exposed_ns=30 * MS, count=1.0)
    return Evidence().add(
        budget(device=True, compute=70, comm=30), found, device_time(100), late_by_turns(30, 0)
    )
