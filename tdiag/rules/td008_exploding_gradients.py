"""Gradients explode

## What it measures
The total norm of the gradients, as the optimizer's step uses them, in a handful of steps: how far
the largest lies from the median, and whether any was infinite or no number. Norms before the first
usual one belong to the start of the training and are left out.

## Why it is slow
It is not: one step along a gradient ten times the usual length can undo thousands of others, and
one that is not finite ends the training.

## What to do
Clip the norm: `torch.nn.utils.clip_grad_norm_` between backward and step, at about the usual norm.

## How the gain is computed
Nothing is predicted: it is about how training converges, not about how long a step takes.

## When this advice is wrong
A loss that is a sum over the batch has a norm that follows the number of samples. An agent's norms
follow the length of its episodes, and those of models trained against each other who is ahead: of
both, only norms that are not finite are reported.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from tdiag.evidence.kinds import Calls, Flags, Optimizers, Phases
from tdiag.evidence.store import Evidence
from tdiag.evidence.training import Gradients
from tdiag.model.diagnosis import Fix
from tdiag.rules.base import Abstain, Found, where
from tdiag.rules.examples import flags, optimizers
from tdiag.rules.measures import count, text
from tdiag.rules.training_kind import fits_data

CODE = "TD008"
NAME = "exploding-gradients"
CLASS = "compute"

# Pascanu, Mikolov and Bengio ("On the difficulty of training recurrent neural networks", 2013)
# clip at half to ten times the average norm: beyond that, every threshold of theirs would clip.
EXPLODING_FACTOR = 10.0
# A median that a single large norm does not move takes three.
MIN_LOOKS = 3


def check(
    gradients: Gradients,
    flags: Flags | None,
    optimizers: Optimizers | None,
    calls: Calls | None,
    phases: Phases | None,
) -> Found | None:
    if gradients.clipped:
        return None
    scaled = flags is not None and flags.grad_scaler
    broken = 0 if scaled else gradients.not_finite  # a scaler meets infinities in search of a scale
    looks = len(gradients.norms)
    if not broken and looks < MIN_LOOKS:
        raise Abstain(f"gradients were looked at {looks} times, too few to say what is usual")
    usual = statistics.median(gradients.norms) if looks else 0.0
    largest = max(_after_the_start(gradients.norms, usual), default=0.0)
    exploding = largest >= EXPLODING_FACTOR * usual and usual > 0.0
    if not broken and not (exploding and fits_data(flags, calls, optimizers, phases)):
        return None
    said = f"was {largest:.3g} in one step and {usual:.3g} in the median of {looks}"
    if broken:
        said = f"was infinite or no number in {broken} of {looks + gradients.not_finite} steps"
    first = optimizers.optimizers[0] if optimizers and optimizers.optimizers else None
    at = first.created_at if first else None
    limit = f"{usual:.2g}" if usual else "1.0"
    return Found(
        summary=f"The gradients' norm {said}.",
        evidence=(
            count("steps looked at", looks + gradients.not_finite, "probe"),
            count("not finite", gradients.not_finite, "probe"),
            text("largest norm", f"{largest:.4g}", "probe"),
            text("median norm", f"{usual:.4g}", "probe"),
        ),
        fix=Fix(
            f"torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm={limit}) between"
            f" backward() and the step of the optimizer{where(at)}.",
            "review",
        ),
        at=at,
    )


def _after_the_start(norms: Sequence[float], usual: float) -> Sequence[float]:
    """From the first norm on that is no larger than usual: norms fall steeply in the first steps of
    many trainings."""
    first = next((i for i, norm in enumerate(norms) if norm <= usual), len(norms))
    return norms[first:]


def fires() -> Evidence:
    norms = Gradients(norms=(1.9, 2.2, 47.0, 2.0, 1.8), not_finite=0, clipped=False)
    return Evidence().add(norms, optimizers("SGD"), flags())


def clear() -> Evidence:
    """Norms that fall, as they do at the start of a training."""
    norms = Gradients(norms=(39.0, 14.1, 2.2, 2.0, 1.8, 1.9), not_finite=0, clipped=False)
    return Evidence().add(norms, optimizers("SGD"), flags())
