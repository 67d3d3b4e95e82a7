"""Gradients explode

## What it measures
The total gradient norm at the optimizer's step, in a few steps: the largest compared with the
median, and norms that are not finite. High norms at the start of training are left out, up to the
first that is at most the median.

## Why it is slow
No step time is claimed. One step along a gradient ten times the usual length can undo thousands of
others; one that is not finite ends the training.

## What to do
Clip the norm with `torch.nn.utils.clip_grad_norm_` between backward and step, at about its median.

## How the gain is computed
No gain is predicted: convergence may improve, the time of one step does not.

## When this advice is wrong
If the loss is a sum over the batch, the norm grows with the number of samples. Agents and GANs have
norms that vary by design: for these, only norms that are not finite are reported.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from tdiag.evidence.steps import Phases
from tdiag.evidence.store import Evidence
from tdiag.evidence.torch_ops import Calls
from tdiag.evidence.training import Flags, Gradients, Optimizers
from tdiag.model.diagnosis import Fix
from tdiag.model.threshold import Threshold
from tdiag.rules.base import Abstain, Found, count, text, where
from tdiag.rules.evaluation import fits_data
from tdiag.rules.examples import flags, optimizers

CODE = "TD008"
NAME = "exploding-gradients"
CLASS = "compute"

EXPLODING_FACTOR = Threshold(
    10,
    "times the median norm",
    'Pascanu, Mikolov and Bengio, "On the difficulty of training recurrent neural networks" (2013),'
    " clip at half to ten times the average norm.",
)
MIN_NORMS = Threshold(
    3, "norms", "By definition: the median of three does not follow a single large norm."
)


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
    broken = 0 if scaled else gradients.not_finite  # a scaler provokes infinities to find its scale
    seen = len(gradients.norms)
    if not broken and seen < MIN_NORMS:
        raise Abstain(f"only {seen} gradient norms were measured, too few for a median")
    usual = statistics.median(gradients.norms) if seen else 0.0
    largest = max(_after_the_start(gradients.norms, usual), default=0.0)
    exploding = largest >= EXPLODING_FACTOR * usual and usual > 0.0
    if not broken and not (exploding and fits_data(flags, calls, optimizers, phases)):
        return None
    said = f"was {largest:.3g} in one step; the median of {seen} is {usual:.3g}"
    if broken:
        said = f"was infinite or not a number in {broken} of {seen + broken} steps"
    first = optimizers.optimizers[0] if optimizers and optimizers.optimizers else None
    at = first.created_at if first else None
    limit = f"{usual:.2g}" if usual else "1.0"
    return Found(
        summary=f"The gradient norm {said}.",
        evidence=(
            count("steps measured", seen + gradients.not_finite, "probe"),
            count("not finite", gradients.not_finite, "probe"),
            text("largest norm", f"{largest:.4g}", "probe"),
            text("median norm", f"{usual:.4g}", "probe"),
        ),
        fix=Fix(
            f"Call torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm={limit}) between"
            f" backward() and the step of the optimizer{where(at)}.",
            "review",
            action=f"Clip the gradient norm at {limit}",
        ),
        at=at,
    )


def _after_the_start(norms: Sequence[float], usual: float) -> Sequence[float]:
    """From the first norm that is at most the median: norms often fall steeply at first."""
    first = next((i for i, norm in enumerate(norms) if norm <= usual), len(norms))
    return norms[first:]


def fires() -> Evidence:
    norms = Gradients(norms=(1.9, 2.2, 47.0, 2.0, 1.8), not_finite=0, clipped=False)
    return Evidence().add(norms, optimizers("SGD"), flags())


def clear() -> Evidence:
    """Norms that fall, as they do at the start of a training."""
    norms = Gradients(norms=(39.0, 14.1, 2.2, 2.0, 1.8, 1.9), not_finite=0, clipped=False)
    return Evidence().add(norms, optimizers("SGD"), flags())
