"""Python loop over tensor values outside the loss

## What it measures
User lines before the forward pass, in a module's hooks, in the optimizer or after the step that
repeat torch calls and conversions (`.item()`, `bool(tensor)`) within one step; before the forward
pass also those that only repeat torch calls, over a hundred times. Calls are counted exactly by
line; their clean time is limited by the samples of their functions, if there are any.

## Why it is slow
Every torch call and every conversion costs a few microseconds even on little data. On a device,
each conversion also waits for the device to finish.

## What to do
Write the loop as one expression over whole tensors. If it only observes training, run it every few
dozen steps.

## How the gain is computed
The phase's clean time × these lines' share of its calls' time, at most what samples show of their
functions (without samples: at most the calls' own time). High end: all of it. Low end: half of it
if the calls are small enough to be fixed cost alone; otherwise, and with a device, nothing.

## When this advice is wrong
Recurrences, where each turn needs the previous one, cannot be vectorised.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from tdiag.evidence.sampled import CallTrees, Stacks
from tdiag.evidence.steps import Budget, Phases, component_of
from tdiag.evidence.store import Evidence
from tdiag.evidence.torch_ops import Dispatch, OpLine, Ops
from tdiag.model.diagnosis import Fix
from tdiag.model.threshold import Threshold
from tdiag.rules.base import Found, Gain, count, ns, same_function, where
from tdiag.rules.examples import at, budget, op_line, ops, phases, stack, stacks
from tdiag.rules.hooks import hooks_of, in_hook
from tdiag.rules.loops import (
    MIN_CALLS,
    MIN_LINE_CALLS,
    PLAIN_CALL_NS,
    SMALL_CALL,
    WORK_IN_SMALL_CALL_FRAC,
    conversions,
)
from tdiag.rules.thresholds import LOG_EVERY, MIN_SAMPLES
from tdiag.rules.vectorised import rewriting
from tdiag.units import duration, percent

CODE = "TD711"
NAME = "python-loop-over-tensors"
CLASS = "overhead"
AFTER = {"TD229": "what is kept runs no loop in each step"}
UNTRIED = "the loop must be rewritten; `--freeze` of its function bounds the gain"

# Phases of user code that is neither the model nor its loss; of forward only the modules' hooks.
PHASES = ("prepare", "optimizer", "after_step", "unattributed", "forward")
MANY_CALLS = Threshold(
    4 * MIN_CALLS,
    "torch calls per step",
    "Heuristic: four times as many as a vectorised loss of several terms makes, where the loop"
    " reads no values.",
)
# The budget components of device idle time caused by such a loop.
WITH_DEVICE = ("launch", "sync")


def check(
    budget: Budget,
    ops: Ops,
    phases: Phases,
    stacks: Stacks | None,
    dispatch: Dispatch | None,
    trees: CallTrees | None,
) -> Found | None:
    hooks = hooks_of(trees)
    loops = {phase: lines for phase in PHASES if (lines := _looping(ops, phase, hooks))}
    lines = [line for looping in loops.values() for line in looping]
    spent = sum(_clean(looping, phase, ops, phases) for phase, looping in loops.items())
    if not lines or not spent:
        return None
    if stacks is not None and stacks.samples >= MIN_SAMPLES:
        spent = min(spent, _sampled(lines, stacks) * budget.step_ns)
    else:
        spent = min(spent, sum(line.elapsed_ns for line in lines))
    calls, converted = sum(line.calls for line in lines), sum(conversions(lines).values())
    worst = max(lines, key=lambda line: line.elapsed_ns)
    small = spent <= calls * SMALL_CALL * (dispatch.op_ns if dispatch else PLAIN_CALL_NS)
    sure = small and not budget.has_device
    named = tuple(map(component_of, loops))
    share = percent(spent / budget.step_ns)
    which = "over tensor values outside the loss" if converted else "of torch calls"
    among = f" ({converted:.0f} of them conversions to Python values)" if converted else ""
    return Found(
        summary=(
            f"Python loops {which} take {share} of the step: {calls:.0f} torch calls{among} per"
            f" step, most of their time{where(worst.at)} ({duration(spent)})."
        ),
        evidence=(
            ns("time of these lines", spent, "baseline"),
            count("torch calls", calls, "ops", "per_step"),
            count("conversions", converted, "ops", "per_step"),
        ),
        fix=_rarer(worst) if in_hook(worst, hooks) else rewriting(lines),
        gain=Gain(
            spent * (1 - WORK_IN_SMALL_CALL_FRAC) if sure else 0.0,
            spent,
            f"high end: the loop's {duration(spent)}; low end:"
            f" {'half of it' if sure else 'nothing, if its calls do work or a device hides them'}.",
            (*named, *WITH_DEVICE) if budget.has_device else named,
        ),
        at=worst.at,
    )


def _looping(ops: Ops, phase: str, hooks: Collection[tuple[str, str]]) -> list[OpLine]:
    """The phase's looping lines, if together they convert as often as a loop over elements does, or
    repeat torch calls on what the model is about to get."""
    lines = [
        x
        for x in ops.lines
        if x.phase == phase
        and x.in_loop
        and x.calls >= MIN_LINE_CALLS
        and (phase != "forward" or in_hook(x, hooks))
    ]
    if sum(conversions(lines).values()) >= MIN_CALLS:
        return lines
    repeating = phase == "prepare" and sum(x.calls - x.constructions for x in lines) >= MANY_CALLS
    return lines if repeating else []


def _rarer(worst: OpLine) -> Fix:
    return Fix(
        f"The hook{where(worst.at)} reads values in every step. Let it return at once in all but"
        f" one of {LOG_EVERY} steps, or keep its tensors and read them together.",
        "review",
        action=f"Run the hook every {LOG_EVERY} steps",
        code=f"if step % {LOG_EVERY}:\n    return",
    )


def _clean(lines: Sequence[OpLine], phase: str, ops: Ops, phases: Phases) -> float:
    """The phase's clean time × the lines' share of the time of its calls, ns per step."""
    total = sum(x.elapsed_ns for x in ops.lines if x.phase == phase)
    mine = sum(x.elapsed_ns for x in lines)
    return phases.wall_ns.get(phase, 0.0) * mine / total if total else 0.0


def _sampled(lines: Sequence[OpLine], stacks: Stacks) -> float:
    """Share of the training thread's samples in the functions of these lines."""
    places = {y.at.spot for y in lines}  # a comprehension has its function's line
    return sum(
        x.self_frac
        for x in stacks.training
        if x.at.spot in places or any(same_function(x.at, y.at) for y in lines)
    )


def fires() -> Evidence:
    """All pairs of a batch of samples, compared after the step."""
    pairs = op_line(
        70, "after_step", 1610, at=at(70, "diversity"), conversions={"item": 322.0}, in_loop=True
    )
    step = budget(forward=3, backward=5, optimizer=1, other=9)
    clean = phases(forward=3, backward=5, optimizer=1, after_step=9)
    sampled = stacks((stack(70, 0.48, "norm (torch/functional.py)", "after_step", "diversity"),))
    return Evidence().add(step, clean, sampled, ops(pairs), Dispatch(op_ns=1500, grad_op_ns=7000))


def clear() -> Evidence:
    """As much time after the step, in a handful of calls and two values for the log."""
    logged = op_line(70, "after_step", 10, conversions={"item": 2.0}, in_loop=True)
    step = budget(forward=3, backward=5, optimizer=1, other=9)
    return Evidence().add(step, phases(forward=3, backward=5, after_step=9), ops(logged))
