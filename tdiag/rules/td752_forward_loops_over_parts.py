"""The model's forward loops over parts of its tensors

## What it measures
Lines of the forward that repeat a torch call at least eight times in one call of the model, and in
which a call takes no longer than a small loss may: a loop over groups, samples, heads, windows or
time steps. Loops that call layers (TD712, TD719) or read values (TD501, TD711), hooks, functions
named as a loss, and calls that take little more than their fixed cost (TD701) are left out. Whether
a turn of the loop needs the one before is read from the source: a variable that is read before it
is set, unless things are only added to it.

## Why it is slow
Each call costs the same few microseconds of Python and dispatch for one small part as for the whole
tensor, in forward and again in backward.

## What to do
Compute all parts in one call: a dimension more (`view`, `unfold`, `unbind`), a batched product
(`bmm`, `einsum`), `index_add` or `scatter_reduce` for groups of rows. If each turn needs the one
before, compile the function that has the loop.

## How the gain is computed
High end: the time of these calls with their backward. Low end: half of it, because the one call
also takes time; nothing if each turn needs the one before. On a device such calls are TD701's.

## When this advice is wrong
If the parts have different sizes, one call needs padding or an index. A loop that stops early by
value cannot become one call.
"""

from __future__ import annotations

import linecache

from tdiag.evidence.sampled import CallTrees, Stacks
from tdiag.evidence.steps import Budget, Phases
from tdiag.evidence.store import Evidence
from tdiag.evidence.torch_ops import Dispatch, OpLine, Ops
from tdiag.evidence.training import Modules
from tdiag.model.diagnosis import Fix
from tdiag.rules.base import Found, Gain, count, ns, where
from tdiag.rules.call_parts import part_of_calls
from tdiag.rules.examples import MS, at, budget, op_line, ops, phases
from tdiag.rules.fixed_cost import FIXED_COST_FACTOR
from tdiag.rules.hooks import hooks_of, in_hook
from tdiag.rules.log_lines import logging_spots
from tdiag.rules.loop_heads import carries, in_a_loop
from tdiag.rules.loops import (
    LAYERS,
    MIN_CALLS,
    MIN_LINE_CALLS,
    SMALL_CALL,
    WORK_IN_SMALL_CALL_FRAC,
    again_and_again,
    in_loss,
    loop_of,
    value_loops,
)
from tdiag.rules.vectorised import OF_PARTS, rewriting
from tdiag.units import duration, percent

CODE = "TD752"
NAME = "forward-loops-over-parts"
CLASS = "overhead"
UNTRIED = "the loop must be rewritten; `--freeze` of its function bounds the gain"
AFTER = {"TD750": "slices taken in one call may make the loop cheap"}


def check(
    budget: Budget,
    phases: Phases,
    ops: Ops,
    dispatch: Dispatch,
    modules: Modules | None,
    stacks: Stacks | None,
    trees: CallTrees | None,
) -> Found | None:
    if budget.has_device:
        return None
    hooks, logging = hooks_of(trees), logging_spots(stacks)
    others = value_loops(ops, modules, hooks, logging)
    over_layers = {loop_of(x) for x in ops.lines if LAYERS & x.names.keys()} - {None}
    lines = [
        x
        for x in ops.lines
        if x.phase == "forward"
        and _loops(x)
        and loop_of(x) not in over_layers
        and x not in others
        and not in_hook(x, hooks)
        and not in_loss(x, modules)
        and x.elapsed_ns <= x.calls * SMALL_CALL * dispatch.op_ns
    ]
    spots = {x.at.spot for x in lines}
    part = part_of_calls(
        phases, ops, stacks, lambda x: x.elapsed_ns if x.at.spot in spots else 0.0, ("forward",)
    )
    if part is None or part.calls < MIN_CALLS:
        return None
    if part.ns <= FIXED_COST_FACTOR * part.calls * dispatch.op_ns:
        return None  # nothing but fixed cost: TD701
    worst = part.lines[0]
    total = part.ns + part.backward_ns
    series = carries(worst.at)
    low = (part.ns + part.least_backward_ns) * (1 - WORK_IN_SMALL_CALL_FRAC)
    return Found(
        summary=(
            f"A Python loop in the forward makes {part.calls:.0f} small torch calls per step, most"
            f" of their time{where(worst.at)} in {worst.at.function}. With their backward they take"
            f" {duration(total)} ({percent(total / budget.step_ns)})."
        ),
        evidence=(
            ns("time of these lines", part.ns, "baseline"),
            ns("their backward", part.backward_ns, "baseline"),
            count("torch calls", part.calls, "ops", "per_step"),
            count("turns of the loop", max(worst.names.values(), default=0.0), "ops", "per_step"),
            ns("cost of a call without work", dispatch.op_ns, "probe"),
        ),
        fix=_compiled(worst) if series else rewriting(part.lines, otherwise=OF_PARTS),
        gain=Gain(
            0.0 if series else low,
            part.ns + part.most_backward_ns,
            f"high end: the {duration(part.ns)}, and {part.share.at_most}; low end:"
            f" {'nothing, if it cannot be compiled' if series else 'half of it'}.",
            part.phases,
        ),
        at=worst.at,
    )


def _loops(line: OpLine) -> bool:
    """Whether the line itself repeats calls without weights; a function that others call in a loop
    does not."""
    repeats = line.in_loop and line.calls >= MIN_LINE_CALLS and again_and_again(line)
    of_its_own = in_a_loop(line.at) or not linecache.getline(*line.at.spot)
    return repeats and of_its_own and not LAYERS & line.names.keys()


def _compiled(worst: OpLine) -> Fix:
    return Fix(
        f"Compile the function with the loop{where(worst.at)}: each turn needs the one before, so"
        " the turns cannot become one call. If only sums are passed on, use cumsum.",
        "review",
        action="Compile the loop of the forward",
        code=f"{worst.at.function.rpartition('.')[2]} = torch.compile("
        f"{worst.at.function.rpartition('.')[2]})  # the function with the loop",
    )


def fires() -> Evidence:
    """A readout that pools the atoms of each of 128 molecules."""
    return _pooled(128)


def clear() -> Evidence:
    """A few scales."""
    return _pooled(4)


def _pooled(groups: int) -> Evidence:
    names = {"__getitem__": float(groups), "softmax": float(groups)}
    loop = op_line(
        81, "forward", 2 * groups, grad_calls=2.0 * groups, at=at(81, "pool"), names=names,
        in_loop=True, elapsed_ns=groups * 60_000,
    )  # fmt: skip
    rest = op_line(24, "forward", 30, grad_calls=30.0, elapsed_ns=8 * MS)
    step = budget(forward=17, backward=30, optimizer=1)
    clean = phases(forward=17, backward=30, optimizer=1)
    return Evidence().add(step, clean, ops(loop, rest), Dispatch(op_ns=1600, grad_op_ns=7000))
