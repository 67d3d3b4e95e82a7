"""The optimizer takes the tensors one by one

## What it measures
Torch calls between the end of backward and the end of the step, counted by line: how many of them
are made again and again in one step, and what one of them takes of the clean optimizer time,
against what a call costs on this machine before it does any work.

## Why it is slow
A loop over the parameters makes a handful of calls for each tensor. On small tensors every call is
nothing but its fixed cost, and a model has hundreds of tensors.

## What to do
Update all tensors with one call an operation: `foreach=True` for an optimizer of torch, the
`torch._foreach_*` functions on lists of tensors for one of your own, or the optimizer of torch that
computes the same with `fused=True`.

## How the gain is computed
From the optimizer's clean time in these calls, and what the `foreach` form won on small tensors
where it was tried: 1.45 to 3.46 times. With a device, from the time for which it idles during the
optimizer: all of it at best, nothing at worst.

## When this advice is wrong
On a CPU, `foreach` is slower for tensors of 100,000 numbers and more, since each pass goes over all
of them before the next begins: there the calls do work, and this rule stays silent. It holds
copies of intermediate results for all tensors at once.
"""

from __future__ import annotations

from tdiag.evidence.kinds import Budget, Dispatch, OpLine, Ops, Optimizer, Optimizers
from tdiag.evidence.store import Evidence
from tdiag.model.diagnosis import Fix
from tdiag.rules.base import Found, Gain, held, where
from tdiag.rules.examples import budget, op_line, ops, optimizers
from tdiag.rules.fixed_cost import FIXED_COST_FACTOR
from tdiag.rules.measures import count, ns
from tdiag.units import duration, percent

CODE = "TD710"
NAME = "optimizer-loops-over-tensors"
CLASS = "overhead"

# The foreach form of Adam makes a dozen calls however many tensors there are; four times that is a
# loop that can win. Ours.
MIN_CALLS = 48
# Loop against foreach on one thread, torch 2.13, 100 tensors of 16 to 4096 numbers: 1.45× (SGD with
# momentum) to 3.46× (Adam written by hand); 0.24× to 1.03× with tensors of 262,144 numbers.
FOREACH_WINS = (1.45, 3.46)
# Under a tenth of the step, the least win of 1.45× would be 1.03×, hardly more than the ±1.4 % by
# which a program differs from itself.
MIN_OPTIMIZER_FRAC = 0.1
# Optimizers of torch with a foreach form and no fused one (torch.optim, release 2.13).
ONLY_FOREACH = (
    "ASGD", "Adadelta", "Adafactor", "Adamax", "NAdam", "RAdam", "RMSprop", "Rprop",
)  # fmt: skip
# Those that have a rule of their own: their fused form wins more.
FUSED = ("SGD", "Adam", "AdamW", "Adagrad")


def check(
    budget: Budget, ops: Ops, dispatch: Dispatch, optimizers: Optimizers | None
) -> Found | None:
    used = optimizers.optimizers if optimizers else ()
    if any(x.name in FUSED for x in used):
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
        return None  # the calls work: taking them together would win nothing
    worst = max(looped, key=_calls)
    least, most = FOREACH_WINS
    gain = (spent * (1 - 1 / least), spent * (1 - 1 / most))
    return Found(
        summary=(
            f"The optimizer makes {calls:.0f} torch calls a step, tensor by tensor"
            f"{where(worst.at)}: {duration(spent)} ({percent(spent / budget.step_ns)} of the step),"
            f" {duration(spent / calls)} a call."
        ),
        evidence=(
            count("torch calls of the optimizer, in a loop", calls, "ops", "per_step"),
            ns("their time", spent, "budget"),
            ns("a call that does no work", dispatch.op_ns, "probe"),
        ),
        fix=Fix(_advice(used, worst), "review"),
        gain=Gain(
            *((0.0, spent) if budget.has_device else gain),
            f"on small tensors, taking all of them with one call an operation was {least:g} to"
            f" {most:g} times as fast on a CPU; on a device, its idle time during the optimizer.",
            ("optimizer",),
        ),
        at=worst.at,
    )


def _inside(line: OpLine) -> bool:
    """The line makes one call, and the loop is that of the optimizer it called."""
    return not line.in_loop and line.calls >= MIN_CALLS * line.turns


def _calls(line: OpLine) -> float:
    return line.calls


def _advice(used: tuple[Optimizer, ...], worst: OpLine) -> str:
    single = [x for x in used if x.name in ONLY_FOREACH and not x.config.get("foreach")]
    if single:
        return (
            f"torch.optim.{single[0].name}(..., foreach=True){where(single[0].created_at)}, so that"
            f" the step{where(worst.at)} takes all tensors with one call an operation."
        )
    if _inside(worst):
        name = used[0].name if used else "the optimizer"
        return (
            f"Switch on the form of {name}{where(used[0].created_at if used else None)} that takes"
            " all tensors with one call an operation, if its library has one (often named foreach"
            " or fused), or use the optimizer of torch.optim that computes the same, with"
            " fused=True."
        )
    return (
        f"Take all tensors with one call an operation{where(worst.at)} (torch._foreach_mul_(list,"
        " …), torch._foreach_add_, torch._foreach_addcdiv_ instead of the loop), or use the"
        " optimizer of torch.optim that computes the same, with fused=True."
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
