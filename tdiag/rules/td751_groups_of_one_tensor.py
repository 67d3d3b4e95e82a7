"""The optimizer has a parameter group for each tensor

## What it measures
How many parameter groups an optimizer has, and how many of them differ in their settings (learning
rate, weight decay and so on): at least a dozen groups, of which most have the settings of another.

## Why it is slow
`step()` goes through the groups one by one. For each it collects the tensors in Python and calls
the update once. `foreach` and `fused` update all tensors of *one* group in a few calls, so with
groups of one tensor they save nothing.

## What to do
Put all tensors with the same settings into one group. A constructor that reads a learning rate and
a weight decay for each parameter (by its name, or by its number of dimensions) can collect them in
a dictionary by these settings. On a CPU, torch updates the tensors of a group one by one unless
`fused=True` (or `foreach=True`) is passed: without it, joining the groups alone made the steps of a
net of 300 small tensors 1.30 times as fast (torch 2.13, two cores).

## How the gain is computed
Low end: what a further group costs SGD and AdamW at least, in empty torch calls of this machine,
times the groups that go; or the fixed cost of the torch calls that they make, if that is more. High
end: the time of the step of the optimizer shrinks with its groups; the updates of large tensors do
not.

## When this advice is wrong
If something changes the settings of single groups later, such as a schedule for each layer: groups
that differ at any time must stay apart.
"""

from __future__ import annotations

from msgspec.structs import replace

from tdiag.evidence.steps import Budget
from tdiag.evidence.store import Evidence
from tdiag.evidence.torch_ops import Dispatch, Ops
from tdiag.evidence.training import Optimizer, Optimizers
from tdiag.model.diagnosis import Fix
from tdiag.model.threshold import MAJORITY_FRAC, Threshold
from tdiag.rules.base import Found, Gain, count, held, ns, where
from tdiag.rules.examples import at, budget, optimizers
from tdiag.units import per_step

CODE = "TD751"
NAME = "groups-of-one-tensor"
CLASS = "overhead"
UNTRIED = "the groups have to be joined in the script"
BY_ISSUE = True

MIN_GROUPS = Threshold(
    12,
    "parameter groups",
    "Heuristic: learning rates by layer, with and without weight decay, make up to a dozen or two"
    " groups on purpose, and these differ.",
)
CALLS_OF_GROUP = Threshold(
    5,
    "empty torch calls",
    "Measured, what a further group of one tensor costs SGD and AdamW at least, torch 2.13, one"
    " core (benchmarks/rule_constants.py td751).",
)


def check(
    budget: Budget, optimizers: Optimizers, dispatch: Dispatch, ops: Ops | None
) -> Found | None:
    most = max(optimizers.optimizers, key=lambda x: x.groups - x.settings, default=None)
    if most is None or not mostly_alike(most):
        return None
    tensors = sum(x.tensors for x in optimizers.optimizers)
    spent = held(budget, "optimizer") * most.tensors / max(1, tensors)
    at_once = budget.has_device or most.config.get("fused") or most.config.get("foreach")
    form = "" if at_once else "fused=True" if most.has_fused else "foreach=True"
    gone, place = most.groups - most.settings, where(most.created_at)
    high = spent * gone / most.groups
    made = sum(line.calls for line in ops.lines if line.phase == "optimizer") if ops else 0.0
    calls = max(CALLS_OF_GROUP * gone, made * gone / most.groups)
    return Found(
        summary=(
            f"The optimizer{place} goes through {most.groups} parameter groups of"
            f" {most.tensors} tensors one by one, but only {most.settings} of them differ:"
            f" {per_step(spent, budget.step_ns)}."
        ),
        evidence=(
            count("parameter groups", most.groups, "probe"),
            count("of them with settings of their own", most.settings, "probe"),
            count("tensors", most.tensors, "probe"),
            ns("the optimizer's step", spent, "budget"),
        ),
        fix=Fix(
            f"Put all tensors with the same settings into one group{place}"
            + (f", and pass {form}" if form else "")
            + ": then they are updated at once.",
            "review",
            action="Make one parameter group for each setting",
            code=(
                "groups = {}\n"
                "for name, p in model.named_parameters():\n"
                "    setting = (lr_of(name), decay_of(name, p))\n"
                "    groups.setdefault(setting, []).append(p)\n"
                f"optimizer = {most.name}(\n"
                '    [{"params": ps, "lr": lr, "weight_decay": wd} for (lr, wd), ps in'
                f" groups.items()]{f', {form}' if form else ''}\n"
                ")"
            ),
        ),
        gain=Gain(
            min(high, calls * dispatch.op_ns),
            high,
            f"low end: the fixed cost of {calls / gone:.0f} calls for each of {gone} groups; high"
            " end: the optimizer's step shrinks with its groups.",
            ("optimizer",),
        ),
        at=most.created_at,
    )


def mostly_alike(optimizer: Optimizer) -> bool:
    """Whether it has many groups, and most of them the settings of another."""
    few = optimizer.settings <= MAJORITY_FRAC * optimizer.groups
    return optimizer.groups >= MIN_GROUPS and few


def fires() -> Evidence:
    """A group for each of 427 tensors, and two kinds of weight decay."""
    return _grouped(427, 427, 2)


def clear() -> Evidence:
    """With and without weight decay."""
    return _grouped(427, 2, 2)


def _grouped(tensors: int, groups: int, settings: int) -> Evidence:
    (one,) = optimizers("AdamW", fused=True).optimizers
    grouped = replace(one, created_at=at(51), tensors=tensors, groups=groups, settings=settings)
    return Evidence().add(
        budget(forward=21, backward=35, optimizer=27),
        Optimizers(optimizers=(grouped,)),
        Dispatch(op_ns=1500, grad_op_ns=7000),
    )
