"""The learning rate stays as it was

## What it measures
The schedulers of torch that were made, and the learning rates of the optimizer's groups from one
look between the windows to the next.

## Why it is slow
It is not: no step time is claimed. A rate that rises and then falls (one-cycle, cyclic, warm-up and
cosine) reaches the same loss in fewer epochs than one that stays, and often a better one.

## What to do
A scheduler, stepped once a batch: `OneCycleLR`, whose highest rate a short range test finds.

## How the gain is computed
Nothing is predicted: it is about how many steps training takes, not about how long one is.

## When this advice is wrong
Rates that are set by hand once an epoch do not show in a run of less than one. Optimizers that find
their own rate (Adafactor, Prodigy, schedule-free ones) need none; they are left out. So are agents
and models trained against each other (GANs), whose usual rates stay.
"""

from __future__ import annotations

import math

from msgspec.structs import replace

from tdiag.evidence.data import Loaders
from tdiag.evidence.kinds import Calls, Flags, Optimizer, Optimizers, Phases, Steps
from tdiag.evidence.store import Evidence
from tdiag.evidence.training import Schedulers
from tdiag.model.diagnosis import Fix
from tdiag.rules.base import Abstain, Found, where
from tdiag.rules.examples import loaders, optimizers
from tdiag.rules.measures import count, text
from tdiag.rules.training_kind import fits_data

CODE = "TD001"
NAME = "no-learning-rate-schedule"
CLASS = "compute"

# Optimizers of torch whose step is as long as the learning rate says.
GIVEN_RATE = ("SGD", "Adam", "AdamW", "NAdam", "RAdam", "Adamax", "RMSprop", "Adagrad", "Muon")


def check(
    optimizers: Optimizers,
    schedulers: Schedulers,
    steps: Steps | None,
    loaders: Loaders | None,
    flags: Flags | None,
    calls: Calls | None,
    phases: Phases | None,
) -> Found | None:
    if not fits_data(flags, calls, optimizers, phases):
        return None
    mine = [x for x in optimizers.optimizers if x.name in GIVEN_RATE]
    if not mine or schedulers.schedulers or any(x.lr_changed for x in mine):
        return None
    looked = [x for x in mine if x.lr_changed is False and x.rates]
    if not looked:
        raise Abstain("the learning rate was looked at less than twice")
    one = looked[0]
    seen = f" in {steps.total_steps_seen} steps" if steps else ""
    return Found(
        summary=f"{one.name}'s learning rate stayed {one.rates[0]:g}{seen}; no scheduler was made.",
        evidence=(
            text("learning rate", f"{one.rates[0]:g}", "probe"),
            count("looks at it", len(one.rates), "probe"),
            *((count("steps seen", steps.total_steps_seen, "probe"),) if steps else ()),
        ),
        fix=Fix(_advice(one, loaders), "manual"),
        at=one.created_at,
    )


def _advice(optimizer: Optimizer, loaders: Loaders | None) -> str:
    loader = loaders.train() if loaders else None
    total = "all steps of the training"
    if loader is not None and loader.epoch_samples and loader.batch_size:
        total = f"epochs × {math.ceil(loader.epoch_samples / loader.batch_size)}"
    return (
        f"torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=…, total_steps={total}) for the"
        f" {optimizer.name}{where(optimizer.created_at)}, stepped after each optimizer.step()."
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
