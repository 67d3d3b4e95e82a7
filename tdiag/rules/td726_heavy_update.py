"""One function of the update takes long

## What it measures
Torch calls of the script's own code while it updates the weights: an optimizer of its own, or an
update by hand. Their time by function, as a share of the optimizer's clean time. Reported if one
function takes a fifth of the step and its calls do work; updates of many small calls are TD710's,
what exchanges gradients is TD903's, and torch's own optimizers are left out.

## Why it is slow
An optimizer that decomposes, inverts or orthogonalises matrices (Shampoo, K-FAC, Muon) computes as
much in each update as a forward pass, or more.

## What to do
Compute what changes slowly, such as a preconditioner, every k-th step and keep it in between; use a
cheaper form (a few Newton-Schulz iterations instead of a decomposition); or split large matrices
into blocks.

## How the gain is computed
The function's share of the time of the update's torch calls × the optimizer's clean time. High end:
it runs in one step of 50. Low end: in every second one.

## When this advice is wrong
If the update needs its result at full freshness: compare the loss at the same time, not at the same
step.
"""

from __future__ import annotations

from collections import Counter

from tdiag.evidence.ranks import Collectives
from tdiag.evidence.sampled import Stacks
from tdiag.evidence.steps import Budget, Phases
from tdiag.evidence.store import Evidence
from tdiag.evidence.torch_ops import Dispatch, OpLine, Ops
from tdiag.model.diagnosis import Fix
from tdiag.rules.base import Found, Gain, count, ns, where
from tdiag.rules.evaluation import LARGE_FRAC
from tdiag.rules.examples import at, budget, op_line, ops, phases, stack, stacks
from tdiag.rules.fixed_cost import FIXED_COST_FACTOR
from tdiag.rules.thresholds import LOG_EVERY, LOW_END_FRAC
from tdiag.units import duration, percent

CODE = "TD726"
NAME = "heavy-update"
CLASS = "compute"
TORCHS = "(optim/"  # in the innermost frame of a line that calls torch's optimizer
UNTRIED = "the script must keep the result; `ceiling.optimizer` bounds the gain"


def check(
    budget: Budget,
    phases: Phases,
    ops: Ops,
    stacks: Stacks,
    dispatch: Dispatch | None,
    collectives: Collectives | None,
) -> Found | None:
    if budget.has_device:
        return None  # the host's clock does not show the calls' time on a device
    torchs = {x.at.spot for x in stacks.training if TORCHS in x.leaf}
    # A line with calls in other phases is a framework's whole loop.
    loops = {x.at.spot for x in ops.lines if x.phase != "optimizer"}
    own = {x.at.spot for x in stacks.training} - torchs - loops
    lines = [x for x in ops.lines if x.phase == "optimizer"]
    whole = sum(x.elapsed_ns for x in lines)
    functions: Counter[tuple[str, str]] = Counter()
    for line in lines:
        exchanges = collectives is not None and collectives.called_in(line.at)  # TD903's
        if line.at.spot not in torchs | loops and not exchanges:
            functions[line.at.file, line.at.function] += round(line.elapsed_ns)
    if not whole or not functions:
        return None
    (file, function), elapsed = functions.most_common(1)[0]
    mine = [x for x in lines if (x.at.file, x.at.function) == (file, function)]
    spent = phases.wall_ns.get("optimizer", 0.0) * elapsed / whole
    working = [x for x in mine if x.at.spot in own and _works(x, dispatch)]
    if spent < LARGE_FRAC * budget.step_ns or not working:
        return None
    worst = max(working, key=lambda x: x.elapsed_ns)
    return Found(
        summary=(
            f"{function} takes {duration(spent)} of the update, {percent(spent / budget.step_ns)}"
            f" of the step, most of it{where(worst.at)}."
        ),
        evidence=(
            ns(f"{function} in the update", spent, "baseline"),
            count("its torch calls", sum(x.calls for x in mine), "ops", "per_step"),
            ns("one call at this line", worst.elapsed_ns / worst.calls, "ops"),
        ),
        fix=Fix(
            f"Run the work{where(worst.at)} in {function} every k-th update and keep its result in"
            " between, or write it in a cheaper form.",
            "review",
            action=f"Run {function} every k-th update",
            code="if step % k == 0:\n    kept = work()  # and use `kept` in every update",
        ),
        gain=Gain(
            spent * LOW_END_FRAC,
            spent * (1 - 1 / LOG_EVERY),
            f"high end: in one update of {LOG_EVERY}; low end: in every second one.",
            ("optimizer",),
        ),
        at=worst.at,
    )


def _works(line: OpLine, dispatch: Dispatch | None) -> bool:
    """Whether its calls take longer than fixed costs."""
    fixed = dispatch.least_ns([line]) if dispatch else 0.0
    return line.elapsed_ns > FIXED_COST_FACTOR * fixed


def fires() -> Evidence:
    """A preconditioner that is decomposed in each update."""
    return _updating(12.0)


def clear() -> Evidence:
    """As many calls, on small tensors."""
    return _updating(0.02)


def _updating(ms: float) -> Evidence:
    step = budget(forward=10, backward=14, optimizer=max(ms, 0.1))
    root = op_line(7, "optimizer", 12, at=at(7, "inverse_root"), elapsed_ns=ms * 1e6)
    rest = op_line(30, "optimizer", 40, at=at(30, "step"), elapsed_ns=0.1e6)
    clean = phases(forward=10, backward=14, optimizer=max(ms, 0.1))
    sampled = stacks((stack(7, 0.3, function="inverse_root"), stack(30, 0.1, function="step")))
    dispatch = Dispatch(op_ns=1500, grad_op_ns=7000)
    return Evidence().add(step, clean, ops(root, rest), sampled, dispatch)
