"""A bias before a norm that takes it away again

## What it measures
Linear and convolution layers with a bias whose output goes into a batch norm (or instance norm) in
training mode and nowhere else, followed from call to call in the counted steps.

## Why it is slow
The norm subtracts the mean of each channel, and the bias with it: it changes nothing. Its addition,
and the sum over the batch that is its gradient, are computed all the same, and the optimizer keeps
its state.

## What to do
`bias=False` in the layer. The norm has a bias of its own.

## How the gain is computed
None is claimed: the addition often runs inside the layer's own kernel, and the sum's time is not
told from the rest of backward.

## When this advice is wrong
Weights that were saved with the bias do not load into a layer without one (`strict=False` does).
Norms in evaluation mode use running statistics, from which a bias is not taken away; such a model
was trained with it.
"""

from __future__ import annotations

from tdiag.evidence.store import Evidence
from tdiag.evidence.training import BiasedLayer, Layers
from tdiag.model.diagnosis import Fix
from tdiag.model.place import Place
from tdiag.rules.base import Abstain, Found, where
from tdiag.rules.examples import at
from tdiag.rules.measures import count, text

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
    layer = "layer has" if len(biased) == 1 else "layers have"
    return Found(
        summary=(f"{len(biased)} {layer} a bias that the norm after it takes away: {names}{more}."),
        evidence=(
            count("layers", len(biased), "ops"),
            count("numbers in their biases", numbers, "ops"),
            text("layers", f"{names}{more}", "ops"),
        ),
        fix=Fix(
            f"bias=False in {names}{more}, called{_place(first.at)}; the {numbers} numbers and"
            " their optimizer state go with it.",
            "review",
        ),
        at=first.at,
    )


def _place(at: Place | None) -> str:
    return where(at) or " by the model"


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
