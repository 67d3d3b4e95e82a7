"""The optimizer loops over tensors

## What it measures
Torch calls between the end of backward and the end of the step, by line: how many repeat within one
step, and their clean time per call against the fixed cost of a call on this machine.

## Why it is slow
A loop over the parameters makes a handful of calls per tensor. On small tensors every call is fixed
cost alone, and a model has hundreds of tensors.

## What to do
Update all tensors with one call per operation: `foreach=True` for a torch optimizer, the
`torch._foreach_*` functions on lists of tensors for your own, or the torch optimizer that computes
the same with `fused=True`.

## How the gain is computed
CPU: from the optimizer's clean time in these calls, and the measured gain of the `foreach` form on
small tensors, 1.45 to 3.46 times. Device: at best all of its idle time during the optimizer, at
worst nothing.

## When this advice is wrong
On a CPU, `foreach` is slower for tensors of 100,000 numbers and more, because each pass covers all
tensors before the next begins. There the calls do work, and this rule stays silent. `foreach` holds
intermediate results for all tensors at once.
"""

from __future__ import annotations

from tdiag.evidence.steps import Budget
from tdiag.evidence.store import Evidence
from tdiag.evidence.torch_ops import Dispatch, OpLine, Ops
from tdiag.evidence.training import Optimizer, Optimizers
from tdiag.model.diagnosis import Fix
from tdiag.model.threshold import Threshold
from tdiag.rules.base import Found, Gain, count, held, ns, where
from tdiag.rules.examples import budget, op_line, ops, optimizers
from tdiag.rules.fixed_cost import FIXED_COST_FACTOR
from tdiag.rules.td702_optimizer_not_fused import FUSED
from tdiag.rules.thresholds import MIN_OPTIMIZER_FRAC
from tdiag.units import duration, percent

CODE = "TD710"
NAME = "optimizer-loops-over-tensors"
CLASS = "overhead"
UNTRIED = "the loop must be rewritten; for torch's own optimizers: `optimizer.foreach`"

MIN_CALLS = Threshold(
    48,
    "torch calls per step",
    "Heuristic: the foreach form of Adam makes a dozen calls for any number of tensors, so four"
    " times that is a loop worth replacing.",
)
_MEASURED = (
    "Measured, foreach against a loop, torch 2.13, one thread, 100 tensors of 16 to 4,096 numbers:"
)
FOREACH_LOW = Threshold(
    1.45,
    "times as fast",
    f"{_MEASURED} SGD with momentum (benchmarks/rule_constants.py td710).",
)
FOREACH_HIGH = Threshold(
    3.46,
    "times as fast",
    f"{_MEASURED} Adam written by hand (benchmarks/rule_constants.py td710).",
)
# Optimizers of torch with a foreach form and no fused one (torch.optim, release 2.13).
ONLY_FOREACH = (
    "ASGD", "Adadelta", "Adafactor", "Adamax", "NAdam", "RAdam", "RMSprop", "Rprop",
)  # fmt: skip


def check(
    budget: Budget, ops: Ops, dispatch: Dispatch, optimizers: Optimizers | None
) -> Found | None:
    used = optimizers.optimizers if optimizers else ()
    if any(x.name in FUSED and x.has_fused for x in used):  # the fused form gains more: TD702
        return None
    lines = [x for x in ops.lines if x.phase == "optimizer"]
    looped = [x for x in lines if x.in_loop or _inside(x)]
    calls, elapsed = sum(x.calls for x in looped), sum(x.elapsed_ns for x in lines)
    if calls < MIN_CALLS or not elapsed:
        return None
    spent = held(budget, "optimizer") * sum(x.elapsed_ns for x in looped) / elapsed
    if spent < MIN_OPTIMIZER_FRAC * budget.step_ns:
        return None
    if not budget.has_device and spent > FIXED_COST_FACTOR * calls * dispatch.op_ns:
        return None  # the calls do work: merging them would gain nothing
    worst = max(looped, key=lambda x: x.calls)
    gain = (spent * (1 - 1 / FOREACH_LOW), spent * (1 - 1 / FOREACH_HIGH))
    return Found(
        summary=(
            f"The optimizer makes {calls:.0f} torch calls per step, tensor by"
            f" tensor{where(worst.at)}: {duration(spent)} ({percent(spent / budget.step_ns)} of the"
            f" step), {duration(spent / calls)} per call."
        ),
        evidence=(
            count("torch calls of the optimizer, in a loop", calls, "ops", "per_step"),
            ns("their time", spent, "budget"),
            ns("fixed cost of a call", dispatch.op_ns, "probe"),
        ),
        fix=_fix(used, worst),
        gain=Gain(
            *((0.0, spent) if budget.has_device else gain),
            "high end: no device idle time during the optimizer; low end: nothing, if the device"
            " idles for other reasons."
            if budget.has_device
            else f"one call per operation for all tensors was {FOREACH_LOW} to {FOREACH_HIGH} times"
            " as fast in measurements.",
            ("optimizer",),
        ),
        at=worst.at,
    )


def _inside(line: OpLine) -> bool:
    """Whether the line makes one call, and the loop is inside the optimizer that it calls."""
    return not line.in_loop and line.calls >= MIN_CALLS * line.turns


def _fix(used: tuple[Optimizer, ...], worst: OpLine) -> Fix:
    single = [x for x in used if x.name in ONLY_FOREACH and not x.config.get("foreach")]
    if single:
        name, made = single[0].name, where(single[0].created_at)
        return Fix(
            f"Set foreach=True in torch.optim.{name}{made}, so that the step{where(worst.at)}"
            " updates all tensors with one call per operation.",
            "review",
            "optimizer.foreach",
            action=f"Switch on the foreach form of {name}",
            code=f"optimizer = torch.optim.{name}(model.parameters(), ..., foreach=True)",
        )
    instead = "or use the torch.optim optimizer that computes the same, with fused=True."
    if _inside(worst):
        name = f"{used[0].name}{where(used[0].created_at)}" if used else "the optimizer"
        return Fix(
            f"Switch on the option of {name} that updates all tensors with one call per operation"
            f" (often named foreach or fused), {instead}",
            "review",
            action="Update all tensors with one call per operation",
        )
    return Fix(
        f"Replace the loop{where(worst.at)} by torch._foreach_* calls on lists of tensors,"
        f" {instead}",
        "review",
        action="Update all tensors with one call per operation",
        code="params = [p for p in model.parameters() if p.grad is not None]\n"
        "grads = [p.grad for p in params]\n"
        "with torch.no_grad():\n"
        "    torch._foreach_add_(params, grads, alpha=-lr)  # p.add_(p.grad, alpha=-lr) for all",
    )


def fires() -> Evidence:
    """Signs of gradients, added by hand to 60 tensors."""
    line = op_line(17, "optimizer", 120, elapsed_ns=120 * 9000, in_loop=True)
    step = budget(forward=0.5, backward=0.9, optimizer=0.6)
    priced = Dispatch(op_ns=1500, grad_op_ns=7000)
    return Evidence().add(step, ops(line), priced, optimizers("SignSGD"))


def clear() -> Evidence:
    """As many calls, but each passes over a megabyte."""
    line = op_line(17, "optimizer", 120, elapsed_ns=120 * 110_000, in_loop=True)
    step = budget(forward=6, backward=12, optimizer=12)
    priced = Dispatch(op_ns=1500, grad_op_ns=7000)
    return Evidence().add(step, ops(line), priced, optimizers("SignSGD"))
