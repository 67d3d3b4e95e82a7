"""The same is computed several times in a step

## What it measures
Calls before and in the forward pass and in the loss that repeat an earlier call of the same step:
the same function, on tensors with the same contents, with the same numbers. Contents are followed
from call to call, so a whole model that is called twice on one input is recognised. Of
`matrix_power(A, n)` all but one product counts if the step has computed the power before it. Random
calls differ. Calls of `torch.autograd.grad` count as well: the gradient of one loss for each pair
of tasks.

## Why it is slow
The keys of an attention projected in each step of a decoder, a mask made in each layer, a network
evaluated anew for each term of the loss: the result is there already. Each repetition also records
its own graph, through which the backward pass goes again. A parametrized weight (weight norm,
an orthogonal weight) is computed at each use: in a recurrence, once in each step.

## What to do
Compute it once, keep the result in a variable, and pass it on. Parametrized weights are kept
within `with torch.nn.utils.parametrize.cached():`.

## How the gain is computed
The time of each phase × the repeated calls' share of the time of its calls; of derivatives their
own time, at most that of backward. With their backward, by its time by line; if that was not
measured, by their share of the time of the calls that record gradients, at the low end a quarter of
that of other calls.

## When this advice is wrong
If the repetition saves memory: keeping the result also keeps its graph until the backward pass.
"""

from __future__ import annotations

from tdiag.evidence.sampled import CallTrees, Stacks
from tdiag.evidence.steps import Budget, Phases
from tdiag.evidence.store import Evidence
from tdiag.evidence.torch_ops import OpLine, Ops, SameInputs
from tdiag.model.diagnosis import Fix
from tdiag.model.place import Place
from tdiag.model.threshold import MAJORITY_FRAC
from tdiag.rules.base import Found, Gain, count, ns, same_function, where
from tdiag.rules.call_parts import backward_share, part_of_calls
from tdiag.rules.callers import caller_of_line, lines_below
from tdiag.rules.examples import at, budget, op_line, ops, phases
from tdiag.units import duration, percent

CODE = "TD727"
NAME = "computed-again"
CLASS = "compute"
UNTRIED = "the result must be kept in the script"
BY_WORK = True
POWERS = {"matrix_power", "linalg_matrix_power"}
AFTER = {
    "TD229": "the function around it need not run in each step",
    "TD720": "a constant need not be computed in any step",
    "TD501": "one expression in place of the loop computes it once",
}


def check(
    budget: Budget,
    phases: Phases,
    ops: Ops,
    stacks: Stacks | None,
    trees: CallTrees | None,
    same: SameInputs | None,
) -> Found | None:
    part = part_of_calls(phases, ops, stacks, lambda x: x.again_ns)
    lines = part.lines if part else ()
    spent = part.spent if part else {}
    derivatives = [x for x in ops.lines if x.phase == "backward"]  # calls of torch.autograd.grad
    if again := sum(x.again_ns for x in derivatives):
        called = sum(x.elapsed_ns for x in derivatives)
        own = again * min(1.0, phases.wall_ns.get("backward", 0.0) / called)
        spent = {**spent, "backward": own}
        lines = tuple(sorted((*lines, *derivatives), key=lambda x: -x.again_ns))
    total = sum(spent.values())
    if not total:
        return None
    share = backward_share(lines, ops, lambda x: x.again_ns)
    whole = phases.wall_ns.get("backward", 0.0)
    backward = whole * share.likely
    worst = lines[0]
    called_at = _called_again_at(worst, ops, trees, same)
    return Found(
        summary=(
            f"Calls that repeat an earlier one of the same step on the same tensors take"
            f" {duration(total)} ({percent(total / budget.step_ns)}), most of it{where(worst.at)}"
            f" in {worst.at.function}{', which is called' + where(called_at) if called_at else ''}."
        ),
        evidence=(
            ns("repeated calls", total, "baseline"),
            ns("their backward", backward, "baseline"),
            count("torch calls of these lines", sum(x.calls for x in lines), "ops", "per_step"),
        ),
        fix=_fix(worst, called_at),
        gain=Gain(
            total + whole * share.least,
            total + (whole * share.most if share.measured else backward),
            f"the {duration(total)}, with {share.at_most}."
            if share.measured
            else f"the {duration(total)}, and their backward: at the low end a quarter of that of"
            " other calls.",
            tuple(dict.fromkeys((*spent, "backward"))),
            calls_go=True,
        ),
        at=called_at or worst.at,
    )


def _called_again_at(
    worst: OpLine, ops: Ops, trees: CallTrees | None, same: SameInputs | None
) -> Place | None:
    """The outermost line above that is seen to call a function again on the same input; else where
    the line's function is called, if most of what it does is repeated. That call is to be made
    once. None otherwise."""
    repeating = [x.at for x in (same.lines if same else ()) if x.again >= MAJORITY_FRAC * x.calls]
    below = {at: lines_below({at.spot}, trees) for at in repeating}
    above = [at for at in repeating if worst.at.spot in below[at]]
    if above:
        return max(above, key=lambda at: len(below[at]))
    function = [x for x in ops.lines if same_function(x.at, worst.at)]
    again = sum(x.again_ns for x in function)
    if worst.parametrized_ns or again < MAJORITY_FRAC * sum(x.elapsed_ns for x in function):
        return None
    return caller_of_line(worst.at, trees)


def _fix(worst: OpLine, called_at: Place | None) -> Fix:
    if worst.parametrized_ns > MAJORITY_FRAC * worst.again_ns:
        return _cached(worst)
    if POWERS & worst.names.keys():
        return Fix(
            f"Multiply the power before by the matrix once more{where(worst.at)}, or a vector by"
            " the matrix in each step, instead of computing each power anew.",
            "manual",
            action="Compute each power from the one before",
            code="z = z @ A  # in each step, not z0 @ torch.linalg.matrix_power(A, step)",
        )
    return Fix(
        f"Compute what is repeated{where(called_at or worst.at)} once in a step, keep the result,"
        " and pass it on.",
        "manual",
        action="Compute it once in a step and keep the result",
    )


def _cached(worst: OpLine) -> Fix:
    return Fix(
        f"Compute the parametrized weights used{where(worst.at)} once in a step: run the forward"
        " pass and the loss within torch.nn.utils.parametrize.cached().",
        "safe",
        action="Cache parametrized weights during the forward pass",
        code="with torch.nn.utils.parametrize.cached():\n    loss = criterion(model(x), y)",
    )


def fires() -> Evidence:
    """The keys of an attention, projected in each of twenty steps of a decoder."""
    return _projected(again=19e6)


def clear() -> Evidence:
    """Projected once, before the loop."""
    return _projected(again=0.0)


def _projected(again: float) -> Evidence:
    keys = op_line(
        20, "forward", 20, grad_calls=20.0, elapsed_ns=20e6, again_ns=again, at=at(20, "attend")
    )
    rest = op_line(24, "forward", 60, grad_calls=60.0, elapsed_ns=20e6)
    step = budget(forward=40, backward=60, optimizer=5)
    clean = phases(forward=40, backward=60, optimizer=5)
    return Evidence().add(step, clean, ops(keys, rest))
