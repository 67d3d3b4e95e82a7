"""A model computes the beginning of a sequence again for each new position

## What it measures
Sequences that a step extends by what a model predicts and passes to it as a whole again: tensors
are followed through joins (`torch.cat`, `torch.stack`) and views, and a sequence grows if the same
weight gets more of it than before. From there to the next join, the time of the calls counts by the
share of the positions that the model was given before. Two such calls in a row are needed.

## Why it is slow
For N new tokens after a prompt of P, the model computes about N × P positions instead of P + N, and
the output layer scores all of them, although only the last is read.

## What to do
If the model is causal, keep the keys and values of the earlier positions, and give it the new one
only: `use_cache=True` and `past_key_values` (or `model.generate`) for models of Hugging Face, a
cache of your own elsewhere. A recurrent layer only needs its last state.

## How the gain is computed
High end: the time of these calls, and of their backward where they record gradients, × the share
that was computed before, without the fixed cost of the calls, which remain. Low end: half of that.

## When this advice is wrong
If the model also looks ahead (an encoder): then a new position changes all others. If gradients
must flow through all positions, a cache saves time but keeps the graph of each call.
"""

from __future__ import annotations

from tdiag.evidence.sampled import Stacks
from tdiag.evidence.steps import Budget, Phases
from tdiag.evidence.store import Evidence
from tdiag.evidence.torch_ops import Dispatch, Ops, PrefixLine
from tdiag.model.diagnosis import Fix
from tdiag.rules.base import Found, Gain, count, ns, where
from tdiag.rules.call_parts import part_of_calls
from tdiag.rules.examples import at, budget, op_line, ops, phases
from tdiag.rules.fixed_cost import cost_of
from tdiag.rules.thresholds import LOW_END_FRAC
from tdiag.units import duration, percent

CODE = "TD733"
NAME = "prefix-computed-again"
CLASS = "compute"
UNTRIED = "the model must keep what it computed"
BY_WORK = True


def check(
    budget: Budget, phases: Phases, ops: Ops, dispatch: Dispatch | None, stacks: Stacks | None
) -> Found | None:
    if not ops.prefixes:
        return None
    part = part_of_calls(phases, ops, stacks, lambda x: x.prefix_ns)
    if part is None:
        return None
    total = part.ns
    most = max(ops.prefixes, key=lambda x: x.positions)
    fixed = cost_of(part.lines, phases, ops, dispatch).dispatch_ns if dispatch else 0.0
    again = 1 - most.new / most.positions
    place = where(most.at)
    its_backward = with_backward = ""
    if part.backward_ns:
        share = percent(part.backward_ns / budget.step_ns)
        its_backward = f", its backward {duration(part.backward_ns)} ({share})"
        with_backward = f", and {part.share.at_most}"
    return Found(
        summary=(
            f"The model is called{place} {most.calls:.0f} times per step on a sequence that grows:"
            f" {percent(again)} of what it is given there it was given before. Computing that again"
            f" takes {duration(total)} ({percent(total / budget.step_ns)}){its_backward}."
        ),
        evidence=(
            count("positions computed", most.positions, "ops", "per_step"),
            count("new positions", most.new, "ops", "per_step"),
            ns("computed again", total, "baseline"),
            *((ns("its backward", part.backward_ns, "baseline"),) if part.backward_ns else ()),
            ns("fixed cost of these calls", fixed, "probe"),
        ),
        fix=Fix(
            f"If the model is causal, keep the keys and values of earlier positions{place}, and"
            " give it the new position only.",
            "review",
            action="Keep keys and values instead of computing them again",
            code="out = model(input_ids=ids[:, -1:], past_key_values=cache, use_cache=True)\n"
            "cache = out.past_key_values",
        ),
        gain=Gain(
            max(0.0, total + part.least_backward_ns - fixed) * LOW_END_FRAC,
            max(0.0, total + part.most_backward_ns - fixed),
            f"high end: the {duration(total)}{with_backward}, without the fixed cost of the calls"
            f" ({duration(fixed)}); low end: half of that.",
            part.phases if part.backward_ns else tuple(part.spent),
        ),
        at=most.at,
    )


def fires() -> Evidence:
    """Fourteen tokens after a prompt of forty."""
    return _generating(prefix_ns=50e6)


def clear() -> Evidence:
    """With a cache."""
    return _generating(prefix_ns=0.0)


def _generating(prefix_ns: float) -> Evidence:
    model = op_line(33, "forward", 1600, elapsed_ns=60e6, prefix_ns=prefix_ns, at=at(33, "rollout"))
    loss = op_line(49, "forward", 100, grad_calls=100.0, elapsed_ns=6e6)
    grown = PrefixLine(at=at(33, "rollout"), calls=13, positions=13 * 47, new=13)
    counted = ops(model, loss)
    if prefix_ns:
        counted = Ops(steps=counted.steps, lines=counted.lines, prefixes=(grown,))
    step = budget(forward=72, backward=9, optimizer=2)
    return Evidence().add(
        step,
        phases(forward=72, backward=9, optimizer=2),
        counted,
        Dispatch(op_ns=1500, grad_op_ns=7000),
    )
