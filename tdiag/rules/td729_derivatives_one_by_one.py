"""Derivatives of single elements are computed one by one

## What it measures
A user line that calls `torch.autograd.grad` with `create_graph=True` on one element of a tensor
(`out[i, k]`) at least a dozen times for each update, and at least twice for each call of the model:
each point of a physics residual, each sample of a batch.

## Why it is slow
Each call walks the graph of the whole batch for one element of the result, and records a graph of
its own. The loss's backward then goes through all of these graphs. With 80 calls for 40 points, a
step took 11 times as long as with one call for each of the two outputs (torch 2.13, two cores).

## What to do
If an element depends on its own sample only, call it once for each output: the gradient of the sum
holds every sample's derivative. If all pairs count, `torch.func.jacrev` computes all rows at once.

## How the gain is computed
High end: all of backward but the share of one call, with the calls beside them in their loop.
Low end: if the work of the step needs at most a fifth of backward's time, half of that, or all but
five times that least time; otherwise nothing. With a device, backward keeps at least twice the time
that the forward pass takes on the host.

## When this advice is wrong
If each derivative needs the result of the one before. All rows of a full Jacobian in one call save
calls, not arithmetic: of Laplacians in 12 to 64 dimensions, whose loop is over directions and not
over samples, one call was 0.2 to 3 times as fast. Such loops are not reported.
"""

from __future__ import annotations

from tdiag.evidence.roofline import Roof, Work
from tdiag.evidence.steps import Budget, Phases, component_of
from tdiag.evidence.store import Evidence
from tdiag.evidence.torch_ops import OpLine, Ops
from tdiag.model.diagnosis import Fix
from tdiag.model.threshold import MAJORITY_FRAC
from tdiag.probe.wire import GRAD_OF_ELEMENT
from tdiag.rules.base import Found, Gain, count, ns, same_function, where
from tdiag.rules.call_parts import part_of_phases
from tdiag.rules.examples import at, budget, op_line, ops, phases
from tdiag.rules.fixed_cost import BACKWARD_WORK, LITTLE_WORK_FRAC, best_of_step_ns
from tdiag.rules.model_calls import MIN_MODEL_CALLS
from tdiag.rules.td722_backward_again_and_again import AGAIN
from tdiag.rules.thresholds import LOW_END_FRAC
from tdiag.units import duration, percent

CODE = "TD729"
NAME = "derivatives-one-by-one"
CLASS = "python_loss"
UNTRIED = "the derivatives have to be joined in the script"
BY_ISSUE = True


def check(
    budget: Budget, phases: Phases, ops: Ops, work: Work | None, roof: Roof | None
) -> Found | None:
    lines = [x for x in ops.lines if _differentiates(x)]
    calls = sum(x.calls for x in lines)
    updates = max(1.0, phases.counts.get("optimizer", 0.0))
    models = phases.counts.get("forward", 0.0)
    if calls < MIN_MODEL_CALLS * updates or calls < AGAIN * models:
        return None
    worst = max(lines, key=lambda x: x.elapsed_ns)
    backward = phases.wall_ns.get("backward", 0.0)
    own = min(backward, sum(x.elapsed_ns for x in lines))
    beside = part_of_phases(
        phases, ops, lambda x: x.elapsed_ns * any(_beside(x, line) for line in lines)
    )
    left = len(lines) / calls  # each line's call stays once
    best = best_of_step_ns(work, roof)
    little = best is not None and best <= LITTLE_WORK_FRAC * backward
    spent = backward + sum(beside.values())
    high = spent * (1 - left)
    low, kept = 0.0, "nothing: their work may take this long"
    if best is not None and little:
        stays = best / LITTLE_WORK_FRAC
        kept = f"half of it, or their work stays, at {percent(LITTLE_WORK_FRAC)} of the best"
        if budget.has_device:  # for which the host has to issue it
            stays = max(stays, BACKWARD_WORK * phases.wall_ns.get("forward", 0.0))
            kept = "half of it, or backward stays at twice the time of the forward pass"
        low = max(high * LOW_END_FRAC, high - stays)
    return Found(
        summary=(
            f"torch.autograd.grad is called {calls:.0f} times per step{where(worst.at)} in"
            f" {worst.at.function}: {duration(own)}, and backward goes through the graphs of all"
            f" of them ({percent(backward / budget.step_ns)} of the step together)."
        ),
        evidence=(
            count("calls of torch.autograd.grad", calls, "ops", "per_step"),
            ns("these calls", own, "ops"),
            ns("all of backward", backward, "baseline"),
            *((ns("least time for the work of the step", best, "probe"),) if best else ()),
        ),
        fix=Fix(
            f"Compute the derivatives of all samples in one call{where(worst.at)}. If an output"
            " depends on its own sample only, the gradient of the sum has them all; if all pairs"
            " count, torch.func.vmap(torch.func.jacrev(f)) computes all rows at once.",
            "review",
            action="Compute all derivatives in one call",
            code="(dx,) = torch.autograd.grad(out[:, k].sum(), x, create_graph=True)",
        ),
        gain=Gain(
            low,
            high,
            f"high end: {len(lines)} calls instead of {calls:.0f}, in a backward as much smaller;"
            f" low end: {kept}.",
            (*sorted({component_of(x) for x in beside} | {"backward"}),),
        ),
        at=worst.at,
    )


def _beside(line: OpLine, differentiates: OpLine) -> bool:
    """Whether calls of the line are made in the same loop."""
    often = line.calls > MAJORITY_FRAC * differentiates.calls
    return often and same_function(line.at, differentiates.at)


def _differentiates(line: OpLine) -> bool:
    """Most of its calls differentiate an element and record a graph."""
    graphs = line.grad_calls > MAJORITY_FRAC * line.calls
    return graphs and line.names.get(GRAD_OF_ELEMENT, 0.0) > MAJORITY_FRAC * line.calls


def fires() -> Evidence:
    """Two derivatives of each of 40 points."""
    return _points(calls=80.0)


def clear() -> Evidence:
    """Two derivatives of all points."""
    return _points(calls=2.0)


def _points(calls: float) -> Evidence:
    spot = at(39, "output_gradients")
    lines = ops(
        op_line(39, "backward", calls, grad_calls=calls, names={GRAD_OF_ELEMENT: calls},
                elapsed_ns=9e6, at=spot),
        op_line(39, "loss", calls, grad_calls=calls, elapsed_ns=4e5, at=spot),
        op_line(52, "loss", 8, grad_calls=8.0, elapsed_ns=1e5),
    )  # fmt: skip
    counts = {"forward": 2.0, "backward": calls + 1, "optimizer": 1.0}
    clean = phases(counts, forward=1, loss=1, backward=19, optimizer=1)
    return Evidence().add(budget(forward=1, loss=1, backward=19, optimizer=1), clean, lines)
