"""Batches use wider types than their values need

## What it measures
Bytes of a batch by tensor and dtype, and the values of a sample of each in the first batches:
`float64` (NumPy's default), whole numbers that fit fewer bytes (`int64` masks), and pixels (whole
numbers from 0 to 255, or multiples of 1 ÷ 255).

## Why it is slow
Collating, sending from the worker, pinning and the copy to the device all move every byte. A photo
in `float32` has four times the bytes of one in `uint8`, in `float64` eight times.

## What to do
Keep `uint8` until the device; convert and normalise there. Use `float32` for values, and the
smallest type that fits for masks and indices. Class labels of a few bytes may stay.

## How the gain is computed
High end: the saved bytes are neither collated, at 2 GB/s, nor copied to the device. Low end:
nothing, if other work hides that time.

## When this advice is wrong
Embeddings and `cross_entropy` need `int64` indices: convert on the device. Some numerics need
`float64`. Only a sample of values was read: a rare one may not fit.
"""

from __future__ import annotations

from dataclasses import dataclass

from tdiag.evidence.device import Transfers
from tdiag.evidence.feeding import BatchField, Loader, Loaders
from tdiag.evidence.machine import System
from tdiag.evidence.steps import Budget, Phases
from tdiag.evidence.store import Evidence
from tdiag.model.diagnosis import Fix
from tdiag.model.threshold import MAJORITY_FRAC, Threshold
from tdiag.rules.base import DATA_WAIT, Abstain, Found, Gain, bytes_, frac, held, where
from tdiag.rules.examples import MB, budget, loaders, system
from tdiag.rules.feed import feed_of
from tdiag.rules.fetch_lines import dataset_place
from tdiag.units import percent, size

CODE = "TD208"
NAME = "values-wider-than-needed"
CLASS = "cpu"
UNTRIED = "the conversion must move from the dataset to the device"

SAVED_FRAC = Threshold(
    0.25, "of the batch", "By arithmetic: half of the batch in types twice as wide saves a quarter."
)
# Bytes of one value of the types that can be too wide.
WIDTHS = {"float64": 8, "int64": 8, "complex128": 16, "float32": 4, "int32": 4, "int16": 2}
# Where values were not read: the type of half the width.
NARROWER = {"float64": "float32", "int64": "int32", "complex128": "complex64"}
# Types of whole numbers, smallest first: name, minimum, maximum, bytes.
WHOLE = (
    ("uint8", 0, 255, 1), ("int8", -128, 127, 1), ("int16", -(2**15), 2**15 - 1, 2),
    ("int32", -(2**31), 2**31 - 1, 4),
)  # fmt: skip


@dataclass(frozen=True)
class _Narrowed:
    """A tensor of the batch, or all of one dtype, and the narrower type that is enough."""

    name: str  # "" = all of this dtype
    dtype: str
    bytes: float
    enough: str
    saved: float
    scaled: bool = False  # multiples of 1 ÷ 255

    def __str__(self) -> str:
        of = f"'{self.name}' is" if self.name else "tensors are"
        return f"{of} {self.dtype} ({size(self.bytes)}), {self.enough} is enough"


def check(
    budget: Budget,
    loaders: Loaders,
    system: System,
    phases: Phases | None,
    transfers: Transfers | None,
) -> Found | None:
    loader = loaders.train()
    if loader is None:
        return None
    if loader.batch_dtypes is None:
        raise Abstain("the bytes of a batch by dtype were not measured")
    total = sum(loader.batch_dtypes.values())
    wide = sorted(_narrowed(loader), key=lambda x: -x.saved)
    saved = sum(x.saved for x in wide)
    if not wide or saved < SAVED_FRAC * total:
        return None
    fed = feed_of(budget, loaders, phases, system)
    # Apart from copying, a collate function costs the same per sample, however narrow the type.
    collating = fed.gain_of_saving(min(fed.collate, fed.copying)) if fed else 0.0
    copying = held(budget, "h2d") if transfers else 0.0
    at = dataset_place(loader)
    return Found(
        summary=(
            f"A batch of {size(total)} would take {size(total - saved)} in narrower types:"
            f" {wide[0]}."
        ),
        evidence=(
            bytes_("batch", total, "fetch"),
            *(bytes_(f"{x.name or 'tensors'}, {x.dtype}", x.bytes, "fetch") for x in wide[:3]),
            frac("saved share of the batch", saved / total, "fetch"),
        ),
        fix=Fix(
            f"In {loader.dataset_class}{where(at)}, {_advice(wide)}."
            f" {percent(saved / total)} fewer bytes are then collated, sent and copied.",
            "review",
            action=f"Keep the values in {wide[0].enough} until the device",
        ),
        gain=Gain(
            0.0,
            (collating + copying) * saved / total,
            "high end: the saved bytes are neither collated nor copied; low end: nothing, if other"
            " work already hides that time.",
            (*DATA_WAIT, "h2d"),
        ),
        at=at,
    )


def _narrowed(loader: Loader) -> list[_Narrowed]:
    """By tensor if values were read, else by dtype."""
    if loader.fields:
        found = [_field(field) for field in loader.fields]
        return [x for x in found if x is not None]
    return [
        _Narrowed("", name, taken, NARROWER[name], taken * MAJORITY_FRAC)
        for dtype, taken in (loader.batch_dtypes or {}).items()
        if (name := dtype.removeprefix("torch.")) in NARROWER
    ]


def _field(field: BatchField) -> _Narrowed | None:
    name = field.dtype.removeprefix("torch.")
    if name not in WIDTHS:
        return None
    enough, width = _enough(field, name)
    if width >= WIDTHS[name]:
        return None
    saved = field.bytes * (1 - width / WIDTHS[name])
    return _Narrowed(field.name, name, field.bytes, enough, saved, bool(field.of_255))


def _enough(field: BatchField, name: str) -> tuple[str, int]:
    """The narrowest type for the values read, and its bytes."""
    counts = name.startswith("int")
    low, high = field.minimum, field.maximum
    varies = low is not None and high is not None and low < high  # a constant says nothing
    if field.of_255 and varies:
        return WHOLE[0][0], WHOLE[0][3]
    if field.integral and varies:
        # Whole numbers in a float are only taken for pixels, in the range of uint8.
        for whole, least, most, width in WHOLE if counts else WHOLE[:1]:
            if least <= (low or 0) and (high or 0) <= most:
                return whole, width
    if name in NARROWER and not counts:
        return NARROWER[name], WIDTHS[name] // 2
    return name, WIDTHS[name]


def _advice(wide: list[_Narrowed]) -> str:
    first = wide[0]
    of = f"'{first.name}'" if first.name else "samples"
    if first.enough == WHOLE[0][0] and first.dtype.startswith("float"):
        divided = " (without the division of ToTensor)" if first.scaled else ""
        return (
            f"keep {of} in uint8{divided}. Convert and normalise on the device:"
            f" x.to(device, non_blocking=True).float(){'.div_(255)' if first.scaled else ''}"
        )
    return (
        f"create {of} in {first.enough} (array.astype('{first.enough}', copy=False)). Widen on the"
        " device if needed"
    )


def fires() -> Evidence:
    """Photos that ToTensor made float32, and their labels."""
    labels = BatchField(
        name="1", dtype="int64", bytes=512.0, minimum=0.0, maximum=999.0, integral=True,
        of_255=False,
    )  # fmt: skip
    return _batch(_photos(0.0, 1.0, of_255=True), labels)


def clear() -> Evidence:
    """Normalised values in float32, labels in int64."""
    return _batch(_photos(-2.1, 2.6, of_255=False))


def _photos(minimum: float, maximum: float, of_255: bool) -> BatchField:
    return BatchField(
        name="0", dtype="float32", bytes=38.5 * MB, minimum=minimum, maximum=maximum,
        integral=False, of_255=of_255,
    )  # fmt: skip


def _batch(*fields: BatchField) -> Evidence:
    dtypes = {"torch.float32": 38.5 * MB, "torch.int64": 512.0}
    slow = loaders(batch_dtypes=dtypes, fields=fields, collate_ns=20e6, collate_cpu_ns=20e6)
    return Evidence().add(budget(data_wait_cpu=75, forward=20), slow, system())
