"""Batches travel in 64-bit types

## What it measures
Bytes of a batch by dtype: how much of it is `float64`, NumPy's default, or `int64`.

## Why it is slow
Everything that handles the batch moves twice the bytes: collating, sending it from the worker,
pinning, the copy to the device. Few models compute in 64 bits.

## What to do
Convert where the sample is made: `float32` for values, `uint8` for pixels (normalised on the
device), `int32` or `uint8` for masks. Class labels of a few bytes may stay.

## How the gain is computed
High end: half of the 64-bit share of the copies to the device and of collating is gone. Low end:
nothing, if other things hide it.

## When this advice is wrong
Embeddings and `cross_entropy` want `int64` indices: convert on the device. Numerics that need
`float64` need it.
"""

from __future__ import annotations

from tdiag.diagnose.model import Fix
from tdiag.evidence.device import Transfers
from tdiag.evidence.kinds import Budget, Loader, Loaders, Phases, System
from tdiag.evidence.store import Evidence
from tdiag.rules.base import DATA_WAIT, Abstain, Found, Gain, held, percent, size, where
from tdiag.rules.examples import MB, budget, loaders, system
from tdiag.rules.feed import feed_of
from tdiag.rules.fetch_lines import dataset_place
from tdiag.rules.measures import bytes_, frac

CODE = "TD208"
NAME = "double-width-batches"
CLASS = "cpu"

# Types of eight bytes and more for each value, as torch names them.
WIDE = ("float64", "int64", "complex128")
# By definition of "mostly": the larger half of the batch.
MAJORITY_FRAC = 0.5
# 64-bit types narrowed to 32 bits take half the bytes; to bytes, an eighth.
NARROWED_FRAC = 0.5


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
        raise Abstain("no batch was weighed by dtype")
    wide, total = _wide(loader), sum(loader.batch_dtypes.values())
    if not total or wide <= MAJORITY_FRAC * total:
        return None
    fed = feed_of(budget, loaders, phases, system)
    collating = fed.gain_of_saving(fed.collate) if fed else 0.0
    copying = held(budget, "h2d") if transfers else 0.0
    share = wide / total
    return Found(
        summary=(
            f"{percent(share)} of each batch ({size(wide)} of {size(total)}) is in 64-bit types."
        ),
        evidence=(
            bytes_("64-bit types in a batch", wide, "fetch"),
            bytes_("batch", total, "fetch"),
            frac("64-bit share of the batch", share, "fetch"),
        ),
        fix=Fix(
            f"Make samples in 32 bits or less in {loader.dataset_class}"
            f"{where(dataset_place(loader))} (array.astype('float32', copy=False)),"
            " bytes where they were bytes, and widen on the device.",
            "review",
        ),
        gain=Gain(
            0.0,
            (collating + copying) * share * NARROWED_FRAC,
            "high end: half of the 64-bit bytes are neither collated nor copied; low end: hidden.",
            (*DATA_WAIT, "h2d"),
        ),
        at=dataset_place(loader),
    )


def _wide(loader: Loader) -> float:
    dtypes = loader.batch_dtypes or {}
    return sum(count for name, count in dtypes.items() if name.removeprefix("torch.") in WIDE)


def fires() -> Evidence:
    double = loaders(
        batch_dtypes={"torch.float64": 80.0 * MB, "torch.int64": 512.0},
        batch_bytes=80.0 * MB,
        collate_ns=20e6,
        collate_cpu_ns=20e6,
    )
    return Evidence().add(budget(data_wait_cpu=75, forward=20), double, system())


def clear() -> Evidence:
    """Pixels in float32, labels in int64."""
    single = loaders(batch_dtypes={"torch.float32": 38.5 * MB, "torch.int64": 512.0})
    return Evidence().add(budget(data_wait_cpu=60, forward=20), single, system())
