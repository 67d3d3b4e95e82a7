"""Gradients are computed and dropped before the optimizer uses them

## What it measures
While stacks are sampled: which optimizers' parameters each line that calls `backward` computes
gradients for, by the graph of the loss, and whether these gradients are deleted or set to zero
before that optimizer steps. A line is reported if most of its calls' gradients for an optimizer are
gone, and backward goes further for them alone, or the products for them are more than a quarter of
all that it computes. For parameters that no optimizer updates there is TD717.

## Why it is slow
Backward goes through everything that led to the loss. If a critic learns from fakes that are not
detached, it goes on through the whole generator. The generator's `zero_grad()` then throws the
result away. If a generator learns through a larger critic, the critic's weight gradients are also
computed, about half of the backward pass there.

## What to do
Cut the graph where it is not needed: `critic(fakes.detach())`, or make the fakes under
`torch.no_grad()`, which also saves the generator's graph. Where the gradient must pass through a
model that does not learn from it, name the parameters that do:
`loss.backward(inputs=list(generator.parameters()))`. With DistributedDataParallel name all
parameters of a model or none.

## How the gain is computed
By the graph of the loss: what only these parameters need, as a share of its nodes, of its
multiplications and of the numbers in its gradients. A node costs a fixed time, its multiplications
and its numbers, so that the share of the time lies between the least and the largest of the three.
Low end: nine tenths of the least share of the line's backward, because the call itself takes time,
too. High end: the largest share. On a device only the time of all lines' backward is known: the low
end is nothing.

## When this advice is wrong
The script reads these gradients before it drops them (a penalty, a norm for the log).
"""

from __future__ import annotations

from tdiag.evidence.device import DeviceTime
from tdiag.evidence.roofline import Work
from tdiag.evidence.sampled import Stacks
from tdiag.evidence.steps import Budget
from tdiag.evidence.store import Evidence
from tdiag.evidence.training import DroppedAt, DroppedGradients, GraphShares
from tdiag.model.diagnosis import Fix
from tdiag.model.threshold import MAJORITY_FRAC
from tdiag.rules import graph_shares
from tdiag.rules.base import Found, Gain, count, held, ns, where
from tdiag.rules.device_waits import kernels_ns, shortened_cuts
from tdiag.rules.examples import at, budget, stack, stacks
from tdiag.rules.fixed_cost import BACKWARD_WORK
from tdiag.units import duration, percent

CODE = "TD732"
NAME = "gradients-dropped"
CLASS = "compute"


def check(
    budget: Budget,
    dropped: DroppedGradients,
    stacks: Stacks | None,
    work: Work | None,
    device: DeviceTime | None,
) -> Found | None:
    # Backward that must go through a layer computes two products there: only the one of its weights
    # is for their gradients.
    lines = [
        x for x in dropped.lines if x.beyond or x.shares.products > MAJORITY_FRAC / BACKWARD_WORK
    ]
    if not lines:
        return None
    if budget.has_device:
        # Of one line it is not known.
        took = dict.fromkeys(lines, kernels_ns(budget, work, device, lambda op: op.backward))
    else:
        took = {line: _backward_ns(line, budget, stacks) for line in lines}
    worst = max(lines, key=lambda line: took[line] * graph_shares.most(line.shares))
    least, most = graph_shares.least(worst.shares), graph_shares.most(worst.shares)
    spent = took[worst]
    low = 0.0 if budget.has_device else spent * least
    low_end = "nothing" if budget.has_device else f"{duration(low)}, by the least"
    whose = worst.module or "another model"
    return Found(
        summary=(
            f"backward(){where(worst.at)} computes gradients for the {worst.values:,} parameters of"
            f" {whose}, which are dropped before its optimizer{where(worst.optimizer_at)} steps:"
            f" {percent(least)} to {percent(most)} of what it computes is for them."
        ),
        evidence=(
            count("parameters whose gradients are dropped", worst.values, "probe"),
            count("parameters whose gradients are used", worst.kept, "probe"),
            *graph_shares.measures(worst.shares),
            ns("backward of all lines, on the device", spent, "trace")
            if budget.has_device
            else ns("the line's backward", spent, "budget"),
        ),
        fix=_fix(worst, whose),
        gain=Gain(
            low,
            spent * most,
            f"{percent(most)} of backward's {duration(spent)}, the largest of the three shares;"
            f" low end: {low_end}.",
            ("compute",) if budget.has_device else ("backward",),
            {},
            shortened_cuts(budget, spent * most) if budget.has_device else {},
        ),
        at=worst.at,
    )


def _backward_ns(line: DroppedAt, budget: Budget, stacks: Stacks | None) -> float:
    """The line's part of all backward passes, by samples; without samples, all of them."""
    backward = held(budget, "backward")
    mine = (
        {x.at.spot: x.self_frac for x in stacks.training if x.phase == "backward"} if stacks else {}
    )
    if line.at is None or line.at.spot not in mine:
        return backward
    return backward * mine[line.at.spot] / sum(mine.values())


def _fix(line: DroppedAt, whose: str) -> Fix:
    if line.beyond:
        return Fix(
            f"Cut the graph before the loss{where(line.at)}: detach what comes from {whose}, or"
            " compute it under torch.no_grad().",
            "review",
            "model.dropped_gradients=off",
            action="Detach what is not trained by this loss",
            code="with torch.no_grad():\n    fakes = generator(noise)\nloss = critic(fakes).mean()",
        )
    return Fix(
        f"Give backward(){where(line.at)} only the parameters that learn from this loss, not those"
        f" of {whose}: backward(inputs=list(model.parameters())).",
        "safe",
        "model.dropped_gradients=off",
        action="Compute no gradients that are dropped",
        code="loss.backward(inputs=list(generator.parameters()))",
    )


def fires() -> Evidence:
    """A critic learns from fakes that are not detached from their generator."""
    return _critic(values=300_000)


def clear() -> Evidence:
    return _critic(values=0)


def _critic(values: int) -> Evidence:
    line = DroppedAt(
        at=at(88), values=values, kept=100_000, beyond=True, module="Generator",
        shares=GraphShares(nodes=0.5, products=0.7, numbers=0.6), optimizer_at=at(60),
    )  # fmt: skip
    sampled = stacks((stack(88, 0.4, phase="backward"), stack(96, 0.2, phase="backward")))
    return Evidence().add(
        budget(forward=35, backward=60, optimizer=5),
        sampled,
        DroppedGradients(lines=(line,) if values else ()),
    )
