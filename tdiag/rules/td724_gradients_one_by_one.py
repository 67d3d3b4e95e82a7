"""Gradients are computed in many small passes

## What it measures
How often backward begins (`backward()` or `torch.autograd.grad`) for each update, if a forward pass
comes before each: at least a dozen times, or four times if each pass takes a single sample, without
a batch of a DataLoader for each. Whether these passes do enough work: their time, and that of calls
made as often beside them, against the fixed cost of their torch calls and the least time that this
machine needs for their work.

## Why it is slow
Python, dispatch and autograd's bookkeeping cost the same for one sample as for a batch. With 24
passes of single samples through a small model after each step, the step took 8.5 times as long as
with the same gradients from one call of `vmap` (torch 2.13, one core; benchmarks/drawn.jsonl).

## What to do
If only the sum of the gradients counts, compute one loss on all samples: its gradient is the sum.
If each sample's own gradient is needed (clipping or norms per sample, influence), use
`torch.func.vmap` over `torch.func.grad`.

## How the gain is computed
High end: all passes but one go, with the calls beside them. Low end: half of that if the calls are
small enough to be fixed cost alone; otherwise their fixed cost on this machine.

## When this advice is wrong
If a pass needs the result of the one before (inner steps of MAML, an attack in several steps), the
passes of one chain stay; only several chains can go together. One pass on all samples needs more
memory. BatchNorm takes its statistics from all samples of a pass.
"""

from __future__ import annotations

from tdiag.evidence.roofline import Roof, Work
from tdiag.evidence.steps import Budget, Phases, component_of
from tdiag.evidence.store import Evidence
from tdiag.evidence.torch_ops import Dispatch, OpLine, Ops
from tdiag.evidence.training import Optimizers
from tdiag.model.diagnosis import Fix
from tdiag.model.threshold import MAJORITY_FRAC, Threshold
from tdiag.rules.base import Found, Gain, count, ns, where
from tdiag.rules.examples import budget, op_line, ops, phases
from tdiag.rules.fixed_cost import FIXED_COST_FACTOR, best_ns, cost_of
from tdiag.rules.loops import WORK_IN_SMALL_CALL_FRAC
from tdiag.rules.model_calls import MIN_MODEL_CALLS
from tdiag.rules.td722_backward_again_and_again import AGAIN
from tdiag.units import duration, percent

CODE = "TD724"
NAME = "gradients-one-by-one"
CLASS = "overhead"
UNTRIED = "the passes have to be joined in the script"
BY_ISSUE = True

# Its step calls the closure, forward and backward, again and again: each needs the one before.
SEARCHING = "LBFGS"
MIN_SINGLES = Threshold(
    4,
    "passes of single samples",
    "Heuristic: an update of several nets, such as an actor and two critics, has a pass for each.",
)


def check(
    budget: Budget,
    phases: Phases,
    ops: Ops,
    dispatch: Dispatch,
    optimizers: Optimizers | None,
    work: Work | None,
    roof: Roof | None,
) -> Found | None:
    if optimizers and any(SEARCHING in x.name for x in optimizers.optimizers):
        return None
    forward, passes = (phases.counts.get(name, 0.0) for name in ("forward", "backward"))
    each = max(passes / max(1.0, phases.counts.get("optimizer", 0.0)), phases.grad_calls)
    fed = sum(phases.batches.values())
    if each < MIN_SINGLES or passes >= AGAIN * forward or fed > MAJORITY_FRAC * each:
        return None
    lines = _of_each(ops, each)
    if each < MIN_MODEL_CALLS and not _of_single_samples(lines):
        return None
    forwards = [x for x in lines if x.phase != "backward"]  # which stand for their backward
    cost = cost_of(forwards, phases, ops, dispatch)
    best = best_ns(forwards, work, roof)
    small = cost.spent_ns <= FIXED_COST_FACTOR * cost.dispatch_ns
    little = cost.does_little(best)
    if not cost.calls or not (small or little):
        return None
    gone, least = 1 - 1 / each, min(cost.dispatch_ns, cost.spent_ns)
    at = max(lines, key=lambda x: (x.phase == "backward", x.phase == "loss", x.elapsed_ns)).at
    # Calls between the passes use each gradient: a clipping, a norm.
    alone = any(x.phase not in ("forward", "loss") for x in forwards)
    return Found(
        summary=(
            f"Gradients are computed in {each:.0f} small passes{where(at)}:"
            f" {duration(cost.spent_ns / each)} each, {percent(cost.spent_ns / budget.step_ns)} of"
            " the step."
        ),
        evidence=(
            count("passes", each, "baseline", "per_step"),
            count("torch calls in them", cost.calls, "ops", "per_step"),
            ns("these calls and their backward", cost.spent_ns, "baseline"),
            ns("fixed cost of these calls on this machine", cost.dispatch_ns, "probe"),
        ),
        fix=_each_ones(where(at)) if alone else _the_sum(where(at)),
        gain=Gain(
            (1 - WORK_IN_SMALL_CALL_FRAC) * cost.spent_ns * gone if small else least * gone,
            cost.spent_ns * gone,
            f"high end: one pass instead of {each:.0f}; low end:"
            f" {'half of it' if small else 'the fixed cost of their calls'}.",
            (*sorted({component_of(x.phase) for x in lines} | {"backward"}),),
        ),
        at=at,
    )


def _of_each(ops: Ops, passes: float) -> list[OpLine]:
    """The lines that make calls in most of the passes."""
    return [x for x in ops.lines if x.turns >= MAJORITY_FRAC * passes and x.phase != "data_wait"]


def _of_single_samples(lines: list[OpLine]) -> bool:
    weighted = [x for x in lines if x.repeated]
    return bool(weighted) and all(x.one_row for x in weighted)


def _each_ones(place: str) -> Fix:
    return Fix(
        f"Compute the gradients of all samples{place} by one call of torch.func.vmap. If only their"
        " sum counts, add the losses and call backward once.",
        "review",
        action="Compute the gradients of all samples at once",
        code=(
            "from torch.func import functional_call, grad, vmap\n\n"
            "def loss_of(weights, x, y):  # of one sample\n"
            "    return criterion(functional_call(model, weights, (x[None],)), y[None])\n\n"
            "weights = {name: p.detach() for name, p in model.named_parameters()}\n"
            "gradients = vmap(grad(loss_of), in_dims=(None, 0, 0))(weights, inputs, targets)"
        ),
    )


def _the_sum(place: str) -> Fix:
    return Fix(
        f"Call the model once on the samples of all passes{place}, and backward once on the sum of"
        " their losses: its gradient is the sum of the gradients.",
        "review",
        action="Compute the gradient of all samples in one pass",
        code="loss = criterion(model(torch.stack(samples)), targets)\nloss.backward()",
    )


def fires() -> Evidence:
    """The norm of each sample's gradient: 24 samples, one pass each."""
    return _passes(24.0)


def clear() -> Evidence:
    """A generator and a critic: three passes, and two updates."""
    return _passes(3.0)


def _passes(times: float) -> Evidence:
    counts = {"forward": times, "backward": times, "optimizer": 1.0}
    clean = phases(counts, forward=6, loss=1, backward=12, optimizer=1)
    lines = ops(
        op_line(20, "forward", 90 * times, grad_calls=80.0 * times, turns=times),
        op_line(40, "loss", 2 * times, grad_calls=2.0 * times, turns=times),
    )
    return Evidence().add(
        budget(forward=6, loss=1, backward=12, optimizer=1), clean, lines,
        Dispatch(op_ns=1500, grad_op_ns=7000),
    )  # fmt: skip
