"""Far more is read than a sample holds

## What it measures
Bytes that a fetch takes through `read()`, from storage or the page cache, against the bytes of the
batch it returns.

## Why it is slow
Every byte that is read is copied, and waited for where it comes from storage. A file that is read
whole for one of its rows is read as often as it has rows; an image that is shrunk to a tenth is
read at full size in every epoch.

## What to do
Open the file once and read only the part that a sample needs (`np.load(path, mmap_mode="r")`,
`mmap`, an offset and a length), or store the samples at the size at which they are used.

## How the gain is computed
From the excess alone, read minus returned. High end: the blocked time shrinks as the bytes do, and
one core copies the excess at 2 GB/s. Low end: only the copying is saved, at 10 GB/s.

## When this advice is wrong
Augmentations that choose another part of a large sample each time (random crops) need all of it to
choose from. Files that are read by `mmap` already do not count here: their pages are not read
through `read()`.
"""

from __future__ import annotations

from tdiag.evidence.data import Loaders
from tdiag.evidence.kinds import Budget, Phases, Stacks, System
from tdiag.evidence.store import Evidence
from tdiag.model.diagnosis import Fix
from tdiag.rules.base import DATA_WAIT, Abstain, Found, Gain, where
from tdiag.rules.examples import MB, budget, loaders, stack, stacks, system
from tdiag.rules.feed import COPY_BYTES_PER_S, Feed, feed_of
from tdiag.rules.fetch_lines import dataset_place, top_fetch_lines
from tdiag.rules.measures import bytes_, count, ns
from tdiag.rules.shares import MOSTLY_FRAC
from tdiag.units import significant, size

CODE = "TD102"
NAME = "reads-beyond-use"
CLASS = "io"

# The fast end of what one core copies; the rules' COPY_BYTES_PER_S is the slow end.
FAST_COPY_BYTES_PER_S = 10e9


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
        raise Abstain("the bytes that fetches read, or those of a batch, were not measured")
    excess = read - returned
    if excess <= MOSTLY_FRAC * read:
        return None
    lines = top_fetch_lines(fed, stacks)
    at = lines[0].at if lines else dataset_place(fed.loader)
    low, high = _gain(fed, excess, excess / read)
    return Found(
        summary=(
            f"A fetch reads {size(read)}{where(at)} for a batch of {size(returned)}:"
            f" {significant(read / returned)} times as much as it returns."
        ),
        evidence=(
            bytes_("read per batch", read, "fetch"),
            bytes_("batch", returned, "fetch"),
            count("read ÷ returned", read / returned, "fetch"),
            ns("fetching one step's batches", fed.wall, "fetch"),
            ns("of it blocked", fed.blocked, "fetch"),
        ),
        fix=Fix(_advice(fed, read, returned) + where(at) + ".", "review"),
        gain=Gain(
            low,
            high,
            "high end: blocked time shrinks as the bytes do, and the excess is not copied; low end:"
            " only the copying is saved.",
            DATA_WAIT,
        ),
        at=at,
    )


def _gain(fed: Feed, excess: float, share: float) -> tuple[float, float]:
    """Low and high end, ns per step."""
    each = fed.batches * excess * 1e9
    fast, slow = (min(fed.cpu, each / rate) for rate in (FAST_COPY_BYTES_PER_S, COPY_BYTES_PER_S))
    fast, slow = fed.with_queueing(fast), fed.with_queueing(slow)
    return fed.gain_of_saving(fast), fed.gain_of_saving(share * fed.blocked + slow)


def _advice(fed: Feed, read: float, returned: float) -> str:
    name, per_batch = fed.loader.dataset_class, fed.loader.batch_size
    sizes = f"{size(read)} a batch"
    if per_batch:
        sizes = f"{size(read / per_batch)} a sample, of which {size(returned / per_batch)} are kept"
    return (
        f"{name} reads {sizes}: open its files once and read only the part that a sample needs"
        ' (np.load(path, mmap_mode="r"), or an offset and a length), or store samples as they are'
        " used"
    )


def fires() -> Evidence:
    """A file of a thousand rows is loaded whole for one of them."""
    whole = loaders(rchar_bytes=640.0 * MB, batch_bytes=0.64 * MB)
    fetching = stacks(training=(stack(18, 0.7, "load (numpy/lib/npyio.py)", "data_wait"),))
    return Evidence().add(budget(data_wait_cpu=60, forward=20), whole, system(), fetching)


def clear() -> Evidence:
    """Compressed images, which are larger in the batch than on disk."""
    return Evidence().add(budget(data_wait_cpu=60, forward=20), loaders(), system())
