"""The model's inputs are not normalised

## What it measures
Mean and standard deviation per channel of the first tensor that the model gets in the first
training steps. Later arguments, outputs of other modules, token ids and batches of zeros and ones
are left out.

## Why it is slow
No step time is claimed. Inputs of mostly one sign push all weights of the first layer the same way,
and inputs far from unit scale do not fit the initial weights: training takes more steps, or needs a
smaller learning rate.

## What to do
Subtract the mean and divide by the standard deviation of each channel, on the device.

## How the gain is computed
No gain is predicted: the number of steps may fall, the time of one does not.

## When this advice is wrong
Models that begin with a normalisation layer do not need it, and pretrained models may expect
another range; models with a `Normalize` module and torchvision's detectors are not reported.
Probabilities need no normalisation. Agents are left out, because they normalise observations as
they go. A few batches are a small sample.
"""

from __future__ import annotations

import math

from tdiag.evidence.feeding import Inputs, InputTensor
from tdiag.evidence.store import Evidence
from tdiag.evidence.torch_ops import Calls
from tdiag.evidence.training import Flags, Layers
from tdiag.model.diagnosis import Fix
from tdiag.model.threshold import Threshold
from tdiag.rules.base import Found, text, where
from tdiag.rules.evaluation import acts
from tdiag.rules.examples import at

CODE = "TD003"
NAME = "inputs-not-normalised"
CLASS = "compute"

OFF_CENTRE = Threshold(
    1,
    "standard deviations",
    'LeCun et al., "Efficient BackProp" (1998), 4.3: inputs should average close to zero; beyond'
    " one standard deviation their values are mostly of one sign.",
)
OFF_SCALE = Threshold(
    10,
    "times",
    'LeCun et al., "Efficient BackProp" (1998), 4.3: inputs should have about the same scale; torch'
    " draws initial weights for a scale of one, and ten times off is another order of magnitude.",
)
WITH_BATCH = Threshold(
    2, "dimensions", "By definition: a batch has a dimension for samples and one for values."
)
WHOLE_FROM = Threshold(
    1000, "and more", "By format: larger numbers are printed without decimals or an exponent."
)


# Modules of torchvision and kornia that normalise within the model.
NORMALISES = frozenset({"Normalize", "GeneralizedRCNNTransform"})


def check(
    inputs: Inputs, flags: Flags | None, calls: Calls | None, layers: Layers | None
) -> Found | None:
    if acts(flags, calls) or (layers is not None and NORMALISES & layers.classes.keys()):
        return None
    given = [x for x in inputs.tensors if x.first and not x.binary and len(x.shape) >= WITH_BATCH]
    largest = max(given, key=_numbers, default=None)
    if largest is None or not any(_off(*channel) for channel in _channels(largest)):
        return None
    means, stds = _listed(largest.channel_mean), _listed(largest.channel_std)
    place = where(largest.module_at)
    return Found(
        summary=(
            f"{largest.module}{place} takes values of {_shown(largest.minimum)} to"
            f" {_shown(largest.maximum)} with mean {means} and standard deviation {stds}."
        ),
        evidence=(
            text("mean, by channel", means, "probe"),
            text("standard deviation, by channel", stds, "probe"),
            text("range", f"{_shown(largest.minimum)} to {_shown(largest.maximum)}", "probe"),
            text("shape", "×".join(map(str, largest.shape)), "probe"),
        ),
        fix=Fix(
            f"Compute x = (x - mean) / std on the device before {largest.module}{place}. These"
            f" batches have mean={means} and std={stds}; take both over the whole dataset.",
            "review",
            action="Normalise the inputs on the device",
        ),
        at=largest.module_at,
    )


def _numbers(tensor: InputTensor) -> int:
    return math.prod(tensor.shape)


def _channels(tensor: InputTensor) -> list[tuple[float, float]]:
    return list(zip(tensor.channel_mean, tensor.channel_std, strict=True))


def _off(mean: float, std: float) -> bool:
    """A constant channel has no scale and is never off."""
    if not std:
        return False
    return abs(mean) > OFF_CENTRE * std or not 1 / OFF_SCALE <= std <= OFF_SCALE


def _shown(value: float) -> str:
    """Three significant digits; large values without decimals."""
    return f"{value:,.0f}" if abs(value) >= WHOLE_FROM else f"{value:.3g}"


def _listed(values: tuple[float, ...]) -> str:
    """The first few channels."""
    shown = ", ".join(map(_shown, values[:3]))
    return f"({shown}, …)" if len(values) > 3 else f"({shown})" if len(values) > 1 else shown


def fires() -> Evidence:
    """Pixels of 0 to 255 as floats."""
    return _taking((123.7, 116.3, 103.5), (58.4, 57.1, 57.4), 0.0, 255.0)


def clear() -> Evidence:
    """Normalised, whether by the dataset or on the device."""
    return _taking((0.02, -0.01, 0.04), (1.02, 0.99, 0.97), -2.12, 2.64)


def _taking(
    mean: tuple[float, ...], std: tuple[float, ...], minimum: float, maximum: float
) -> Evidence:
    images = InputTensor(
        name="0", module="Net", module_at=at(10, "forward"), dtype="float32",
        shape=(64, 3, 224, 224), channel_mean=mean, channel_std=std, minimum=minimum,
        maximum=maximum,
    )  # fmt: skip
    return Evidence().add(Inputs(tensors=(images,)))
