"""The learning rate never changes

## What it measures
The schedulers that were created, and the learning rates of the optimizer's parameter groups between
measurement windows.

## Why it is slow
No step time is claimed. A learning rate that rises and then falls (one-cycle, cyclic, warm-up with
cosine) often reaches the same loss in fewer epochs than a constant one.

## What to do
Add a scheduler and step it after each batch, for example `OneCycleLR`. A short learning-rate range
test finds its maximum.

## How the gain is computed
No gain is predicted: the number of steps may fall, the time of one does not.

## When this advice is wrong
A rate that the script sets once an epoch does not show in a run shorter than an epoch. The rule
does not report optimizers that choose their own rate (Adafactor, Prodigy, schedule-free ones),
agents and GANs, which usually train at constant rates.
"""

from __future__ import annotations

import math

from msgspec.structs import replace

from tdiag.evidence.feeding import Loaders
from tdiag.evidence.steps import Phases, StepHistory, Steps
from tdiag.evidence.store import Evidence
from tdiag.evidence.torch_ops import Calls
from tdiag.evidence.training import Flags, Optimizer, Optimizers, Schedulers
from tdiag.model.diagnosis import Fix
from tdiag.rules.base import Abstain, Found, count, text, where
from tdiag.rules.evaluation import fits_data
from tdiag.rules.examples import loaders, optimizers

CODE = "TD001"
NAME = "no-learning-rate-schedule"
CLASS = "compute"

# Optimizers of torch whose step length follows the given learning rate.
GIVEN_RATE = ("SGD", "Adam", "AdamW", "NAdam", "RAdam", "Adamax", "RMSprop", "Adagrad", "Muon")


def check(
    optimizers: Optimizers,
    schedulers: Schedulers,
    steps: Steps | None,
    loaders: Loaders | None,
    flags: Flags | None,
    calls: Calls | None,
    phases: Phases | None,
    history: StepHistory | None,
) -> Found | None:
    if not fits_data(flags, calls, optimizers, phases):
        return None
    mine = [x for x in optimizers.optimizers if x.name in GIVEN_RATE]
    if not mine or schedulers.schedulers or any(x.lr_changed for x in mine):
        return None
    looked = [x for x in mine if x.lr_changed is False and x.rates]
    if not looked:
        raise Abstain("the learning rate was recorded fewer than two times")
    if history is not None and len(history.epochs_ns) == 1:
        raise Abstain(
            "no second epoch was seen, so a rate that is set once an epoch would not have changed"
        )
    one = looked[0]
    seen = f" in {steps.total_steps_seen} steps" if steps else ""
    return Found(
        summary=f"{one.name}'s learning rate stayed at {one.rates[0]:g}{seen}: no scheduler.",
        evidence=(
            text("learning rate", f"{one.rates[0]:g}", "probe"),
            count("times it was recorded", len(one.rates), "probe"),
            *((count("steps seen", steps.total_steps_seen, "probe"),) if steps else ()),
        ),
        fix=_fix(one, loaders),
        at=one.created_at,
    )


def _fix(optimizer: Optimizer, loaders: Loaders | None) -> Fix:
    loader = loaders.train() if loaders else None
    total = "total_steps"
    if loader is not None and loader.epoch_samples and loader.batch_size:
        total = f"epochs * {math.ceil(loader.epoch_samples / loader.batch_size)}"
    return Fix(
        f"Create a OneCycleLR scheduler for the {optimizer.name}{where(optimizer.created_at)} and"
        " step it after each optimizer.step().",
        "manual",
        action="Add a learning-rate schedule",
        code=(
            "scheduler = torch.optim.lr_scheduler.OneCycleLR(\n"
            f"    optimizer, max_lr=max_lr, total_steps={total}\n"
            ")\n"
            "# after each optimizer.step():\n"
            "scheduler.step()"
        ),
    )


def fires() -> Evidence:
    return _training(changed=False)


def clear() -> Evidence:
    """Rates that the script sets itself."""
    return _training(changed=True)


def _training(changed: bool) -> Evidence:
    rates = (0.01, 0.01 if not changed else 0.012, 0.01)
    (given,) = optimizers("SGD", momentum=0.9).optimizers
    looked = replace(given, lr_changed=changed, rates=rates)
    return Evidence().add(Optimizers(optimizers=(looked,)), Schedulers(schedulers=()), loaders())
