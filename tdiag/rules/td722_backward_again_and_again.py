"""Several backward passes follow one forward pass

## What it measures
How often backward begins per step, compared with how often a model is called. Two or more backward
passes per forward pass go through the same graph again (`retain_graph=True`), for example if each
of several losses has its own backward.

## Why it is slow
The part that the losses share, such as the trunk of a multi-task net, is computed once for each
loss. The gradient of a sum is the sum of the gradients, so one backward of the sum gives the same
result.

## What to do
Add the losses, with their weights, and call `backward()` once.

## How the gain is computed
High end: only one of the backward passes remains. Low end: nothing, if the losses share nothing.

## When this advice is wrong
Calls of `torch.autograd.grad` do not count, because a loss may need these derivatives. The advice
is wrong if the gradients of single losses are compared, projected or scaled by their norms (PCGrad,
GradNorm), or if each backward belongs to its own update.
"""

from __future__ import annotations

from tdiag.evidence.sampled import Stacks
from tdiag.evidence.steps import Budget, Phases
from tdiag.evidence.store import Evidence
from tdiag.model.diagnosis import Fix
from tdiag.model.threshold import Threshold
from tdiag.rules.base import Found, Gain, count, held, ns, where
from tdiag.rules.examples import budget, phases, stack, stacks
from tdiag.units import per_step

CODE = "TD722"
NAME = "backward-again-and-again"
CLASS = "compute"
UNTRIED = "the losses have to be added in the script"

AGAIN = Threshold(
    2,
    "backward passes per forward pass",
    "By definition: each forward pass makes a graph that needs one backward pass.",
)


def check(budget: Budget, phases: Phases, stacks: Stacks | None) -> Found | None:
    forward, backward = (phases.counts.get(name, 0.0) for name in ("forward", "backward"))
    backward -= phases.grad_calls  # derivatives that a loss or an update by hand needs
    updates = max(1.0, phases.counts.get("optimizer", 0.0))
    if budget.has_device or not forward or backward < AGAIN * max(forward, updates):
        return None
    spent = held(budget, "backward") * backward / (backward + phases.grad_calls)
    lines = [x for x in stacks.training if x.phase == "backward"] if stacks else []
    at = max(lines, key=lambda x: x.self_frac).at if lines else None
    each = backward / forward
    return Found(
        summary=(
            f"Backward runs {backward:.0f} times per step{where(at)}, {each:.0f} times for each"
            f" forward pass: {per_step(spent, budget.step_ns)}."
        ),
        evidence=(
            count("backward passes", backward, "baseline", "per_step"),
            count("forward passes", forward, "baseline", "per_step"),
            ns("backward", spent, "budget"),
        ),
        fix=Fix(
            f"Add the losses and call backward once{where(at)}. The gradient of the sum is the sum"
            " of the gradients.",
            "review",
            action="Add the losses and call backward once",
            code="sum(losses).backward()",
        ),
        gain=Gain(
            0.0,
            spent * (1 - 1 / each),
            f"high end: one backward instead of {each:.0f}; low end: nothing, if the losses share"
            " no graph.",
            ("backward",),
        ),
        at=at,
    )


def fires() -> Evidence:
    """Six heads on one trunk, a backward for each."""
    return _tasks(backward=6.0)


def clear() -> Evidence:
    """One backward of the sum of six losses."""
    return _tasks(backward=1.0)


def _tasks(backward: float) -> Evidence:
    clean = phases({"forward": 1.0, "backward": backward}, forward=2, loss=1, backward=10)
    line = stack(28, 0.7, "_engine_run_backward (autograd/graph.py)", "backward", "main")
    return Evidence().add(budget(forward=2, loss=1, backward=10), clean, stacks((line,)))
