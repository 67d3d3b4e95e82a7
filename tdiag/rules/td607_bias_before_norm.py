"""A bias before a norm that cancels it

## What it measures
Linear and convolution layers with a bias whose output goes only into a batch norm (or instance
norm) in training mode. Calls are followed in the counted steps.

## Why it is slow
The norm subtracts each channel's mean, and the bias with it, so the bias changes nothing. Its
addition and its gradient (a sum over the batch) are computed anyway, and the optimizer keeps state
for it.

## What to do
Set `bias=False` in the layer. The norm has its own bias.

## How the gain is computed
No gain is claimed: the addition often runs inside the layer's own kernel, and the gradient's time
cannot be separated from the rest of backward.

## When this advice is wrong
Weights saved with the bias do not load into a layer without one (`strict=False` loads the rest).
Norms in evaluation mode use running statistics, which do not cancel the bias of a model trained
with it.
"""

from __future__ import annotations

from tdiag.evidence.store import Evidence
from tdiag.evidence.training import BiasedLayer, Layers
from tdiag.model.diagnosis import Fix
from tdiag.rules.base import Abstain, Found, count, text, where
from tdiag.rules.examples import at
from tdiag.units import plural

CODE = "TD607"
NAME = "bias-before-norm"
CLASS = "compute"


def check(layers: Layers) -> Found | None:
    biased = layers.bias_before_norm
    if biased is None:
        raise Abstain("the model's calls were not followed (window ops)")
    if not biased:
        return None
    first = biased[0]
    names = ", ".join(f"{x.name} ({x.cls})" if x.name else x.cls for x in biased[:3])
    more = f" and {len(biased) - 3} more" if len(biased) > 3 else ""
    numbers = sum(x.features for x in biased)
    having = plural(len(biased), "layer has", "layers have")
    return Found(
        summary=f"{having} a bias that the following norm cancels: {names}{more}.",
        evidence=(
            count("layers", len(biased), "ops"),
            count("numbers in their biases", numbers, "ops"),
            text("layers", f"{names}{more}", "ops"),
        ),
        fix=Fix(
            f"Set bias=False in {names}{more}, called{where(first.at) or ' by the model'}. This"
            f" also drops {numbers} parameters and their optimizer state.",
            "review",
            action="Remove the bias of layers that a norm follows",
        ),
        at=first.at,
    )


def fires() -> Evidence:
    first, second = (
        BiasedLayer(name=name, cls="Conv2d", at=at(21, "forward"), features=64, calls=1.0)
        for name in ("stem.0", "body.3")
    )
    return Evidence().add(_layers(first, second))


def clear() -> Evidence:
    """The same layers without a bias."""
    return Evidence().add(_layers())


def _layers(*biased: BiasedLayer) -> Layers:
    return Layers(
        classes={"Conv2d": 20, "BatchNorm2d": 20},
        mode_dependent=("BatchNorm2d",),
        dtypes={"torch.float32": 45_000_000},
        conv_bytes=45_000_000,
        channels_last_bytes=0,
        bias_before_norm=biased,
        out_of_place=(),
    )
