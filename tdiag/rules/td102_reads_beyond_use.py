"""Fetches read far more bytes than samples hold

## What it measures
Bytes that a fetch takes through `read()`, from storage or the page cache, against the bytes of the
batch that it returns.

## Why it is slow
Every byte read is copied, and waited for if it comes from storage. A file that is read whole for
one of its rows is read once per row; an image that is shrunk to a tenth is read at full size in
every epoch.

## What to do
Open the file once and read only the part that a sample needs (`np.load(path, mmap_mode="r")`,
`mmap`, an offset and a length), or store the samples at the size at which they are used.

## How the gain is computed
From the excess, bytes read minus bytes returned. High end: blocked time shrinks with the bytes, and
one core copies the excess at 2 GB/s. Low end: only the copying is saved, at 10 GB/s.

## When this advice is wrong
Random crops choose from the whole sample and need all of it. Files read by `mmap` do not count:
their pages are not read through `read()`.
"""

from __future__ import annotations

from tdiag.evidence.feeding import Loaders
from tdiag.evidence.machine import System
from tdiag.evidence.sampled import Stacks
from tdiag.evidence.steps import Budget, Phases
from tdiag.evidence.store import Evidence
from tdiag.model.diagnosis import Fix
from tdiag.model.threshold import MAJORITY_FRAC, Threshold
from tdiag.rules.base import DATA_WAIT, Abstain, Found, Gain, bytes_, count, ns, where
from tdiag.rules.examples import MB, budget, loaders, stack, stacks, system
from tdiag.rules.feed import COPY_BYTES_PER_S, Feed, feed_of
from tdiag.rules.fetch_lines import fetch_place, top_fetch_lines
from tdiag.units import significant, size

CODE = "TD102"
NAME = "reads-beyond-use"
CLASS = "io"
UNTRIED = "the data must be stored in another form; `ceiling.data` bounds the gain"

FAST_COPY_BYTES_PER_S = Threshold(
    10e9,
    "bytes/s",
    "The fast end of one core's copying; COPY_BYTES_PER_S is the slow end"
    " (benchmarks/rule_constants.py td102).",
)


def check(
    budget: Budget,
    loaders: Loaders,
    system: System,
    phases: Phases | None,
    stacks: Stacks | None,
) -> Found | None:
    fed = feed_of(budget, loaders, phases, system)
    if fed is None:
        return None
    read, returned = fed.loader.rchar_bytes, fed.loader.batch_bytes
    if read is None or not returned:
        raise Abstain("the bytes that fetches read or those of a batch were not measured")
    excess = read - returned
    if excess <= MAJORITY_FRAC * read:
        return None
    at = fetch_place(fed, top_fetch_lines(fed.loader, stacks))
    low, high = _gain(fed, excess, excess / read)
    return Found(
        summary=(
            f"A fetch reads {size(read)}{where(at)} for a batch of {size(returned)}:"
            f" {significant(read / returned)} times as many bytes."
        ),
        evidence=(
            bytes_("read per batch", read, "fetch"),
            bytes_("batch", returned, "fetch"),
            count("read ÷ returned", read / returned, "fetch"),
            ns("fetching one step's batches", fed.wall, "fetch"),
            ns("fetches blocked, per step", fed.blocked, "fetch"),
        ),
        fix=Fix(
            f"{fed.loader.dataset_class} reads {_sizes(fed, read, returned)}. Open its files once"
            f" and read only the part that a sample needs{where(at)}: np.load(path,"
            ' mmap_mode="r"), or an offset and a length. Or store samples as they are used.',
            "review",
            action="Read only the bytes that a sample needs",
        ),
        gain=Gain(
            low,
            high,
            "high end: blocked time shrinks with the bytes, and the excess is not copied; low end:"
            " only the copying is saved.",
            DATA_WAIT,
            fetches=True,
        ),
        at=at,
    )


def _gain(fed: Feed, excess: float, share: float) -> tuple[float, float]:
    """Low and high end, ns per step."""
    each = fed.batches * excess * 1e9
    fast, slow = (min(fed.cpu, each / rate) for rate in (FAST_COPY_BYTES_PER_S, COPY_BYTES_PER_S))
    fast, slow = fed.with_queueing(fast), fed.with_queueing(slow)
    return fed.gain_of_saving(fast), fed.gain_of_saving(share * fed.blocked + slow)


def _sizes(fed: Feed, read: float, returned: float) -> str:
    samples = fed.loader.batch_size
    if not samples:
        return f"{size(read)} a batch"
    return f"{size(read / samples)} a sample and keeps {size(returned / samples)}"


def fires() -> Evidence:
    """A file of a thousand rows is loaded for each row."""
    whole = loaders(rchar_bytes=640.0 * MB, batch_bytes=0.64 * MB)
    fetching = stacks(training=(stack(18, 0.7, "load (numpy/lib/npyio.py)", "data_wait"),))
    return Evidence().add(budget(data_wait_cpu=60, forward=20), whole, system(), fetching)


def clear() -> Evidence:
    """Compressed images, which are larger in the batch than on disk."""
    return Evidence().add(budget(data_wait_cpu=60, forward=20), loaders(), system())
