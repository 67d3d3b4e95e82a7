"""Steps take longer and longer

## What it measures
The time of each phase over the steps that ran without a profiler: its slope with the step number
(Theil-Sen, with its 95 % interval), from the shortest times of groups of steps. Reported if both
halves of the run grow, if the phase does not fall back (as with each epoch), if it grows more than
the computing around it, if no other phase grew more but unsteadily, and if the growth is
noticeable. Nothing is reported for a minute with busy neighbours, and not a hook that is registered
again and again (TD725).

A run without `--profiling` goes on after its profiled windows, which take a minute at most. Then
eight steps are timed whenever the run has lasted a twentieth longer, and stacks are sampled again
whenever it has lasted twice as long. With eight or more such late windows only they are judged. The
rule names the line with most of the phase's samples, from the last sampling or else the first, if
growth was most of the phase at that time; otherwise it names only the phase. With a device, late
windows are not judged: any phase of the host may wait for the device. A run with `--profiling`
ends with its windows: their steps are judged, and only if one line has most of the phase's samples.
All samples of a backward are in the line that calls it, so there a graph must be seen to grow.

## Why it is slow
A line that goes over everything since the start, such as the mean of a growing list of losses, or a
backward through the graphs of all earlier steps, costs more with each step. In a long run it
dominates in the end, however cheap it is at first.

## What to do
Keep a running sum and a count, or the last N values, instead of the whole list. Detach what is kept
from its graph. If the line is not named, run `tdiag attach PID` once the steps are slow: it samples
them then.

## How the gain is computed
The slope's interval × the steps until the clean ones: how much the phase had grown when these were
timed. The gain grows with the run. If the clean steps had no growth yet, no gain is given.

## When this advice is wrong
Inputs that grow on purpose (a curriculum of longer sequences) make steps longer as well.
"""

from __future__ import annotations

from tdiag.evidence.machine import System
from tdiag.evidence.memory import MemoryGrowth
from tdiag.evidence.sampled import CallTrees, LateStacks, Stacks
from tdiag.evidence.steps import Budget, PhaseGrowth, SlowingDown
from tdiag.evidence.store import Evidence
from tdiag.evidence.torch_ops import Ops
from tdiag.evidence.training import RepeatedHooks
from tdiag.model.diagnosis import Fix
from tdiag.model.place import Place
from tdiag.model.threshold import MAJORITY_FRAC, NOTICEABLE_FRAC, Threshold
from tdiag.rules.base import (
    DATA_WAIT,
    NOISE_FLOOR_FRAC,
    Abstain,
    Found,
    Gain,
    bytes_,
    count,
    held,
    ns,
    where,
)
from tdiag.rules.examples import MS, at, budget, op_line, ops, stack, stacks
from tdiag.rules.feed import left_by_others
from tdiag.rules.loop_lines import AFTER as AFTER_THE_STEP
from tdiag.rules.loop_lines import BEFORE, beside_the_step, main_line, most_sampled
from tdiag.units import duration, size

CODE = "TD714"
NAME = "steps-slow-down"
CLASS = "overhead"
UNTRIED = "a trial is too short to see steps slow down"

# Phase → the budget components that may contain it, if the names differ.
_COMPONENTS = {
    "data_wait": DATA_WAIT, "after_step": ("other",), "prepare": ("prepare", "other"),
}  # fmt: skip
_WORDS = {
    "data_wait": "waiting for the next batch",
    "prepare": "what is done between the batch and the forward",
    "forward": "the forward",
    "loss": "the loss",
    "backward": "the backward",
    "optimizer": "the optimizer's step, or right before it",
    "evaluation": "the evaluation",
    "checkpoint": "saving a checkpoint",
    "gc": "Python's garbage collection",
    "after_step": "what follows the optimizer's step",
    "unattributed": "a part of the step without a name",
}
LATER = Threshold(
    10_000, "steps", "Heuristic: an example of the later cost; a few epochs take as many steps."
)


def check(
    budget: Budget,
    slowing: SlowingDown,
    stacks: Stacks | None,
    ops: Ops | None,
    trees: CallTrees | None,
    memory: MemoryGrowth | None,
    system: System | None,
    late: LateStacks | None,
    repeated: RepeatedHooks | None,
) -> Found | None:
    others = left_by_others(system) if system and slowing.phases and not slowing.late else 1.0
    if others <= 1 - NOTICEABLE_FRAC:
        raise Abstain("other programs kept the cores busy: steps may take longer because of them")
    timed = slowing.last_step - slowing.first_step
    for phase in slowing.phases:
        if phase.phase == "backward" and not slowing.late and not _graph_grows(memory):
            continue
        # Time spent waiting for another rank belongs to TD902.
        if phase.phase == "comm" or phase.least_ns * timed < NOTICEABLE_FRAC * budget.step_ns:
            continue
        if slowing.late and budget.has_device:
            raise Abstain(
                f"each step took {duration(phase.slope_ns)} longer than the previous one, but what"
                " the device did so late was not recorded: run `tdiag attach PID` while it is slow"
            )
        place = None
        if late and slowing.late and _mostly(phase.late_frac):
            place = _place(phase, late.stacks, ops, late.trees, memory)
        if place is None and (not slowing.late or _grew_by_then(phase, memory)):
            place = _place(phase, stacks, ops, trees, memory)
        if place is not None and repeated is not None and repeated.of(place) > 1:
            return None  # a hook that is registered again and again: TD725
        if place is not None or slowing.late:
            named = where(place) and f"most likely{where(place)}"
            return _found(phase, place, named or f"in {_named(phase, ops)}", slowing, budget)
    return None


def _grew_by_then(phase: PhaseGrowth, memory: MemoryGrowth | None) -> bool:
    """Whether growth already was most of the phase in the windows, or a growing graph was
    counted."""
    graphs = phase.phase == "backward" and _graph_grows(memory)
    return graphs or _mostly(phase.grown_frac)


def _graph_grows(memory: MemoryGrowth | None) -> bool:
    return memory is not None and bool(memory.graphs)


def _mostly(frac: float | None) -> bool:
    return frac is not None and frac > MAJORITY_FRAC


def _named(phase: PhaseGrowth, ops: Ops | None) -> str:
    """The phase in words, with the line after which it begins if that is known."""
    updates = [x for x in ops.lines if x.phase == "optimizer"] if ops else []
    behind = max(updates, key=lambda x: x.elapsed_ns, default=None)
    spot = where(behind.at) if behind and phase.phase == "after_step" else ""
    return f"{_WORDS[phase.phase]}{spot}"


def _found(
    phase: PhaseGrowth, at: Place | None, named: str, slowing: SlowingDown, budget: Budget
) -> Found:
    each = f"{duration(phase.least_ns)} to {duration(phase.most_ns)}"
    source = "probe" if slowing.late else "baseline"
    memory = slowing.memory_bytes
    return Found(
        summary=(
            f"Each step takes {duration(phase.slope_ns)} longer than the previous one"
            f" ({each}), {named}: {_comes_to(phase, slowing)}."
            + (f" The process's memory grows by {size(memory)} a step." if memory else "")
        ),
        evidence=(
            ns("longer with each step", phase.slope_ns, source),
            ns("at least", phase.least_ns, source),
            ns("at most", phase.most_ns, source),
            count("first step timed", slowing.first_step, source),
            count("last step timed", slowing.last_step, source),
            *([bytes_("memory grows with each step", memory, source)] if memory else []),
            *([count("compiled again during the run", slowing.compiled, source)]
              if slowing.compiled else []),
        ),
        fix=_fix(at),
        gain=_gain(phase, slowing, budget),
        at=at,
    )  # fmt: skip


def _comes_to(phase: PhaseGrowth, slowing: SlowingDown) -> str:
    if not slowing.late:
        return f"{duration(phase.slope_ns * LATER)} more after {LATER:,.0f} steps"
    first, last = slowing.first_step, slowing.last_step
    more = duration(phase.slope_ns * (last - first))
    return f"step {last:,} took {more} more than step {first:,}"


def _fix(at: Place | None) -> Fix:
    text = (
        f"Keep the work{where(at)} from growing: a running sum and a count, or the last N"
        " values, instead of everything since the start. Detach what is kept from its graph."
    )
    if not where(at):
        text += (
            " The line is not known: no line held most of the samples of a time when the growth was"
            " most of the phase. `tdiag attach PID` samples the steps once they are slow."
        )
    return Fix(text, "review", action="Keep the step's work from growing with the run")


def _gain(phase: PhaseGrowth, slowing: SlowingDown, budget: Budget) -> Gain | None:
    """None if the budget's steps had no growth yet, or too little to show."""
    steps = slowing.clean_step if slowing.late else slowing.last_step
    components = _COMPONENTS.get(phase.phase, (phase.phase,))
    seen = min(phase.most_ns * steps, held(budget, *components))
    if slowing.late and seen < NOISE_FLOOR_FRAC * budget.step_ns:
        return None
    return Gain(
        phase.least_ns * steps,
        phase.most_ns * steps,
        f"this is what {steps:,} steps have added so far; it keeps growing.",
        components,
    )


def _place(
    phase: PhaseGrowth,
    stacks: Stacks | None,
    ops: Ops | None,
    trees: CallTrees | None,
    memory: MemoryGrowth | None,
) -> Place | None:
    """The line that takes most of the phase; for backward, the line whose graph grows."""
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
    slowing = SlowingDown(phases=(growth,), first_step=10, last_step=2010, clean_step=2010)
    return Evidence().add(step, slowing, lines, calls)
