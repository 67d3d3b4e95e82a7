"""Python loop over tensor values in the loss

## What it measures
User lines in the loss, or lines of the forward pass that convert tensors to Python values, that
repeat small torch calls or conversions (`.item()`, `bool(tensor)`, `.tolist()`) within one step.
The loss is what runs between the model's last forward pass and backward, and every function that is
named as a loss (`critic_loss`), because another forward pass may follow it. Calls are counted
exactly by line. Their cost is the clean time of the loss and of the part of backward that was
measured for them. If samples put more of it into Python functions that the loop calls and that make
no torch call, the finding names their line.

## Why it is slow
Every torch call costs a few microseconds even on little data, and every call that records gradients
costs again in `backward()`. On a device, each conversion also waits for the device to finish.

## What to do
Write the loop as one expression over whole tensors: broadcasting or `torch.cdist` for pairs,
`torch.where` or a 0/1 mask for branches, `scatter_add`/`index_add_` for groups, the batched form of
the built-in loss.

## How the gain is computed
High end: all time of these lines in loss and backward; if they are nearly all of the loss, the
whole loss. Low end: half of these lines' time if the calls are small enough to be fixed cost alone;
otherwise nothing.

## When this advice is wrong
Loops over a handful of named loss terms are fine and not reported. Recurrences, where each turn
needs the previous one, cannot be vectorised: compile them.
"""

from __future__ import annotations

from tdiag.evidence.sampled import CallTrees, Stacks
from tdiag.evidence.steps import Budget, Phases
from tdiag.evidence.store import Evidence
from tdiag.evidence.torch_ops import Dispatch, HostOps, OpLine, Ops
from tdiag.evidence.training import Modules
from tdiag.model.diagnosis import Measure
from tdiag.model.place import Place
from tdiag.model.threshold import Threshold
from tdiag.rules.base import Found, Gain, count, ns, same_function, where
from tdiag.rules.callers import common_caller
from tdiag.rules.examples import budget, op_line, ops, phases
from tdiag.rules.log_lines import logging_spots
from tdiag.rules.loop_heads import in_a_loop
from tdiag.rules.loops import (
    MIN_CALLS,
    PLAIN_CALL_NS,
    SMALL_CALL,
    WORK_IN_SMALL_CALL_FRAC,
    LoopTime,
    in_loss,
    loop_time,
    python_inside,
    value_loops,
)
from tdiag.rules.vectorised import rewriting
from tdiag.units import duration, percent

CODE = "TD501"
NAME = "python-loop-in-loss"
CLASS = "python_loss"
UNTRIED = "the loop must be rewritten; `ceiling.loss` bounds the gain"

NEARLY_ALL_FRAC = Threshold(
    0.9,
    "of the loss time",
    "Heuristic: the last tenth of a looping loss only prepares the loop or stacks its results.",
)


def check(
    budget: Budget,
    ops: Ops,
    phases: Phases,
    modules: Modules | None,
    dispatch: Dispatch | None,
    host_ops: HostOps | None,
    stacks: Stacks | None,
    trees: CallTrees | None,
) -> Found | None:
    lines = value_loops(ops, modules, trees, logging_spots(stacks))
    time = loop_time(lines, ops, phases, modules, host_ops)
    loss = [line for line in ops.lines if in_loss(line, modules)]
    whole = loop_time([*loss, *(x for x in lines if x not in loss)], ops, phases, modules, host_ops)
    nearly_all = time.forward_ns >= NEARLY_ALL_FRAC * whole.forward_ns
    most = whole if nearly_all else time
    converted = sum(time.conversions.values())
    conversions = f" ({converted:.0f} of them conversions to Python values)" if converted else ""
    small = time.per_call_ns <= SMALL_CALL * (dispatch.op_ns if dispatch else PLAIN_CALL_NS)
    if time.calls < MIN_CALLS or not (small or converted >= MIN_CALLS):
        return None
    worst = max(lines, key=lambda line: line.elapsed_ns)
    python = python_inside(lines, ops, stacks, trees)
    at = python or worst.at
    spent = f" in Python{where(at)} in {at.function}" if python else where(at)
    if not python and (called_at := _looped_at(worst, lines, trees)):
        at, spent = called_at, f"{spent}, called in the loop{where(called_at)}"
    high = time.forward_ns + time.backward_ns
    share = percent(high / budget.step_ns)
    return Found(
        summary=(
            f"Python loops over tensor values in the loss take {share} of the step:"
            f" {time.calls:.0f} torch calls{conversions} per step, most of their"
            f" time{spent} ({duration(time.forward_ns)} in the loss,"
            f" {duration(time.backward_ns)} in backward)."
        ),
        evidence=(*_measures(time), *_by_line(lines)),
        fix=rewriting(lines, python),
        gain=Gain(
            high * (1 - WORK_IN_SMALL_CALL_FRAC) if small else 0.0,
            most.forward_ns + most.backward_ns,
            f"high end: {'the whole loss' if nearly_all else 'the loop'}"
            f" ({duration(most.forward_ns)}) and its backward ({duration(most.backward_ns)}); low"
            f" end: {'half of the loop' if small else 'nothing, because its calls do work'}.",
            ("loss", "python_loss", "forward", "backward", "sync", "launch"),
        ),
        at=at,
    )


def _looped_at(worst: OpLine, lines: list[OpLine], trees: CallTrees | None) -> Place | None:
    """The line whose loop calls the function of this line, if that has no loop around the line
    itself."""
    if in_a_loop(worst.at):
        return None
    mine = {x.at.spot for x in lines if same_function(x.at, worst.at)}
    called_at = common_caller(mine, trees)
    return called_at if called_at and in_a_loop(called_at) else None


def _measures(time: LoopTime) -> list[Measure]:
    kinds = sorted(time.conversions.items())
    return [
        ns("loss time of these lines", time.forward_ns, "baseline"),
        ns("backward time of these lines", time.backward_ns, "baseline"),
        count("torch calls", time.calls, "ops", "per_step"),
        count("calls that record gradients", time.grad_calls, "ops", "per_step"),
        *(count(f"conversions: {kind}", times, "ops", "per_step") for kind, times in kinds),
    ]


def _by_line(lines: list[OpLine]) -> list[Measure]:
    top = sorted(lines, key=lambda line: -line.elapsed_ns)[:3]
    return [count(f"torch calls{where(line.at)}", line.calls, "ops", "per_step") for line in top]


def fires() -> Evidence:
    loop = op_line(
        52, "loss", 192, grad_calls=128.0, conversions={"item": 64.0}, in_loop=True
    )  # fmt: skip
    step = budget(forward=4, loss=9, backward=12, optimizer=1)
    clean = phases(forward=4, loss=9, backward=12, optimizer=1)
    calls = ops(loop, op_line(20, "forward", 12, grad_calls=12.0))
    return Evidence().add(step, calls, clean, Dispatch(op_ns=1500, grad_op_ns=7000))


def clear() -> Evidence:
    """A vectorised loss, as expensive as the loop: a few calls on large tensors."""
    terms = [op_line(n, "loss", 3, grad_calls=3.0, elapsed_ns=1e6) for n in range(52, 60)]
    step = budget(forward=4, loss=9, backward=12, optimizer=1)
    clean = phases(forward=4, loss=9, backward=12, optimizer=1)
    return Evidence().add(step, ops(*terms, op_line(20, "forward", 12)), clean)
