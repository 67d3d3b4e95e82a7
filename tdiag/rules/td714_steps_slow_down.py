"""Steps take longer and longer

## What it measures
The time of each phase over the steps that ran without a profiler: its slope with the step number
(Theil-Sen, with its 95 % interval), of the shortest times of eight groups of steps. Reported if
both halves of the run grow, if the phase grows as a share of the step, if what grew is noticeable,
and if one line holds most of the phase's samples. Beside busy programs nothing is reported.

## Why it is slow
A line that goes over everything since the start, such as the mean of a growing list of losses, or a
backward through the graphs of all earlier steps, costs more with each step. Over a long run it
comes to dominate, however cheap it is at first.

## What to do
Keep a running sum and a count, or the last N values, instead of the whole list. Detach what is kept
from its graph.

## How the gain is computed
The slope's interval × the steps so far: what the phase has grown by when the clean steps were
timed. The gain grows with the run.

## When this advice is wrong
Inputs that grow on purpose (a curriculum of longer sequences) make steps longer as well.
"""

from __future__ import annotations

from tdiag.evidence.machine import System
from tdiag.evidence.memory import MemoryGrowth
from tdiag.evidence.sampled import CallTrees, Stacks
from tdiag.evidence.steps import Budget, PhaseGrowth, SlowingDown
from tdiag.evidence.store import Evidence
from tdiag.evidence.torch_ops import Ops
from tdiag.model.diagnosis import Fix
from tdiag.model.place import Place
from tdiag.model.threshold import NOTICEABLE_FRAC, Threshold
from tdiag.rules.base import Abstain, Found, Gain, count, ns, where
from tdiag.rules.examples import MS, at, budget, op_line, ops, stack, stacks
from tdiag.rules.feed import left_by_others
from tdiag.rules.loop_lines import AFTER as AFTER_THE_STEP
from tdiag.rules.loop_lines import BEFORE, beside_the_step, main_line, most_sampled
from tdiag.units import duration

CODE = "TD714"
NAME = "steps-slow-down"
CLASS = "overhead"

# Phase → the budget components that may hold it, where the names differ.
_COMPONENTS = {"after_step": ("other",), "prepare": ("prepare", "other")}
LATER = Threshold(
    10_000, "steps", "Heuristic: an example of what it comes to; a few epochs take as many."
)


def check(
    budget: Budget,
    slowing: SlowingDown,
    stacks: Stacks | None,
    ops: Ops | None,
    trees: CallTrees | None,
    memory: MemoryGrowth | None,
    system: System | None,
) -> Found | None:
    if slowing.phases and system is not None and left_by_others(system) <= 1 - NOTICEABLE_FRAC:
        raise Abstain("other programs kept the cores busy: steps may take longer because of them")
    timed = slowing.last_step - slowing.first_step
    for phase in slowing.phases:
        if phase.least_ns * timed < NOTICEABLE_FRAC * budget.step_ns:
            continue
        place = _place(phase, stacks, ops, trees, memory)
        if place is not None:
            return _found(phase, place, slowing)
    return None


def _found(phase: PhaseGrowth, at: Place, slowing: SlowingDown) -> Found:
    each = f"{duration(phase.least_ns)} to {duration(phase.most_ns)}"
    return Found(
        summary=(
            f"Each step takes {duration(phase.slope_ns)} longer than the one before ({each}), most"
            f" likely{where(at)}: {duration(phase.slope_ns * LATER)} more after {LATER:,.0f} steps."
        ),
        evidence=(
            ns("longer with each step", phase.slope_ns, "baseline"),
            ns("at least", phase.least_ns, "baseline"),
            ns("at most", phase.most_ns, "baseline"),
            count("first step timed", slowing.first_step, "baseline"),
            count("last step timed", slowing.last_step, "baseline"),
        ),
        fix=Fix(
            f"Keep the work{where(at)} from growing: a running sum and a count, or the last N"
            " values, instead of everything since the start. Detach what is kept from its graph.",
            "review",
            action="Keep the step's work from growing with the run",
        ),
        gain=Gain(
            phase.least_ns * slowing.last_step,
            phase.most_ns * slowing.last_step,
            f"this is what {slowing.last_step:,} steps have added so far; it keeps growing.",
            _COMPONENTS.get(phase.phase, (phase.phase,)),
        ),
        at=at,
    )


def _place(
    phase: PhaseGrowth,
    stacks: Stacks | None,
    ops: Ops | None,
    trees: CallTrees | None,
    memory: MemoryGrowth | None,
) -> Place | None:
    """The line that takes most of the phase; of backward, the one whose graph grows."""
    if phase.phase == "backward" and memory is not None and memory.graphs:
        return memory.graphs[0].at
    sides = {"after_step": (AFTER_THE_STEP,), "prepare": (AFTER_THE_STEP, BEFORE)}
    if phase.phase in sides:
        lines = [
            x for side in sides[phase.phase] for x in beside_the_step(side, stacks, ops, trees)
        ]
        top = most_sampled(lines)
    else:
        top = main_line(phase.phase, stacks, ops)
    return top.at if top else None


def fires() -> Evidence:
    return _growing(least_us=1.6)


def clear() -> Evidence:
    """A slope that comes to 2 % of the step."""
    return _growing(least_us=0.2)


def _growing(least_us: float) -> Evidence:
    """2,000 steps of 20 ms; most of the time after the step is at line 62."""
    least = least_us * 1e-3 * MS
    growth = PhaseGrowth(
        phase="after_step", slope_ns=1.1 * least, least_ns=least, most_ns=1.2 * least
    )
    calls = ops(
        op_line(57, "forward", 4, at=at(57, "train")),
        op_line(59, "optimizer", 4, at=at(59, "train")),
    )
    lines = stacks((stack(62, 0.4, function="train"), stack(57, 0.5, "", "forward")))
    step = budget(forward=6, backward=4, optimizer=2, other=8)
    slowing = SlowingDown(phases=(growth,), first_step=10, last_step=2010)
    return Evidence().add(step, slowing, lines, calls)
