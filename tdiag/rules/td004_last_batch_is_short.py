"""The last batch of an epoch is short

## What it measures
The samples of one epoch of the training loader, the batch size, and whether the loader drops the
last batch.

## Why it is slow
No step time is claimed. The few samples of the last batch weigh as much in their step as a whole
batch, and batch norm takes its statistics from them alone. Their shape is new, so compiled graphs,
captured graphs and autotuned convolutions are made again for it.

## What to do
Set `drop_last=True`: with shuffling, other samples are left out in the next epoch. Or choose a
batch size that divides the dataset.

## How the gain is computed
No gain is predicted: the cost of the new shape depends on what is compiled for shapes.

## When this advice is wrong
Without shuffling, the same samples would be left out of every epoch. Samplers that repeat samples
or never end have no last batch; they are not reported.
"""

from __future__ import annotations

import math

from tdiag.evidence.feeding import Loaders
from tdiag.evidence.store import Evidence
from tdiag.model.diagnosis import Fix
from tdiag.model.threshold import MAJORITY_FRAC, Threshold
from tdiag.rules.base import Abstain, Found, count, frac, where
from tdiag.rules.examples import loaders
from tdiag.units import percent

CODE = "TD004"
NAME = "last-batch-is-short"
CLASS = "loader"

NEAR_FRAC = Threshold(
    0.1, "of the batch size", "Heuristic: within a tenth, memory and learning rate hardly change."
)


def check(loaders: Loaders) -> Found | None:
    loader = loaders.train()
    if loader is None or not loader.epoch_samples or not loader.batch_size:
        return None
    samples = loader.epoch_samples
    batch = loader.batch_size
    rest = samples % batch
    if not rest or samples < batch or rest > MAJORITY_FRAC * batch:
        return None
    if loader.drop_last is None:
        raise Abstain("drop_last of the loader was not recorded")
    if loader.drop_last:
        return None
    divisor = _divisor_near(samples, batch)
    instead = f" Or set batch_size={divisor}, which divides {samples}." if divisor else ""
    return Found(
        summary=(
            f"{samples} samples in batches of {batch} leave a last batch of {rest}"
            f" ({percent(rest / batch)} of one) in every epoch."
        ),
        evidence=(
            count("samples of an epoch", samples, "probe"),
            count("batch_size", batch, "probe"),
            frac("last batch, share of a whole one", rest / batch, "probe"),
        ),
        fix=Fix(
            f"DataLoader(..., drop_last=True){where(loader.created_at)} leaves {rest} of {samples}"
            f" samples out of each epoch.{instead}",
            "review",
            action="Drop the short last batch",
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
    """The last batch is dropped."""
    return Evidence().add(loaders(drop_last=True))
