"""The last batch of an epoch is a small rest

## What it measures
The number of samples of one pass over the training loader, the batch size, and whether the loader
drops the last batch.

## Why it is slow
It costs no measured time. The few samples of the rest weigh as much in a step as a whole batch,
batch norm takes its statistics from them alone, and their shape is a new one: compiled graphs,
captured graphs and autotuned convolutions are made again for it.

## What to do
`drop_last=True` (the sampler shuffles, so that other samples are left out in the next epoch), or a
batch size that divides the dataset.

## How the gain is computed
Nothing is predicted: what the odd shape costs depends on whether anything is compiled for shapes.

## When this advice is wrong
Where a sampler repeats samples or has no end there is no epoch, and nothing is said. Data without
shuffling would lose the same samples in every epoch.
"""

from __future__ import annotations

import math

from tdiag.evidence.data import Loaders
from tdiag.evidence.store import Evidence
from tdiag.model.diagnosis import Fix
from tdiag.rules.base import Abstain, Found, where
from tdiag.rules.examples import loaders
from tdiag.rules.measures import count, frac
from tdiag.rules.shares import MOSTLY_FRAC
from tdiag.units import percent

CODE = "TD004"
NAME = "last-batch-is-short"
CLASS = "loader"

# A batch size this much smaller or larger at most is offered instead: memory and learning rate
# stay about what they were. Ours.
NEAR_FRAC = 0.1


def check(loaders: Loaders) -> Found | None:
    loader = loaders.train()
    if loader is None or not loader.epoch_samples or not loader.batch_size:
        return None
    samples = loader.epoch_samples
    batch = loader.batch_size
    rest = samples % batch
    if not rest or samples < batch or rest > MOSTLY_FRAC * batch:
        return None
    if loader.drop_last is None:
        raise Abstain("whether the loader drops its last batch is not known")
    if loader.drop_last:
        return None
    divisor = _divisor_near(samples, batch)
    instead = f"; or batch_size={divisor}, which divides them" if divisor else ""
    return Found(
        summary=(
            f"{samples} samples in batches of {batch} leave a last batch of {rest}"
            f" ({percent(rest / batch)} of one) in every epoch."
        ),
        evidence=(
            count("samples of an epoch", samples, "probe"),
            count("batch_size", batch, "probe"),
            frac("last batch, of a whole one", rest / batch, "probe"),
        ),
        fix=Fix(
            f"DataLoader(..., drop_last=True){where(loader.created_at)} leaves {rest} of {samples}"
            f" samples out of an epoch{instead}.",
            "review",
        ),
        at=loader.created_at,
    )


def _divisor_near(samples: int, batch: int) -> int | None:
    """The divisor of ``samples`` closest to ``batch``, if one is near."""
    near = range(math.ceil(batch * (1 - NEAR_FRAC)), int(batch * (1 + NEAR_FRAC)) + 1)
    divisors = [size for size in near if size > 1 and samples % size == 0]
    return min(divisors, key=lambda size: abs(size - batch), default=None)


def fires() -> Evidence:
    """782 batches, the last of a quarter of the size."""
    return Evidence().add(loaders(drop_last=False))


def clear() -> Evidence:
    """The rest is dropped."""
    return Evidence().add(loaders(drop_last=True))
