"""Many small files are opened for a batch

## What it measures
Files that Python opened during fetches, counted by folder, and the mean size of a few of them.

## Why it is slow
Opening a file asks the file system for its name, its rights and its place, and where it is not
cached each of these waits for the disk or the server. Small files one by one are read at a fraction
of the speed at which the same bytes are read in one piece.

## What to do
Pack them: tar shards (WebDataset), LMDB, Parquet, one memory-mapped array. Or read all of them into
memory once, if they fit.

## How the gain is computed
Low end: opening and closing the files, at what that takes for a cached one. High end: the time for
which fetches are blocked is gone, too, as reading in one piece lets the system read ahead.

## When this advice is wrong
Files that a library opens in C (OpenCV, libjpeg, DALI) are not seen, so that this may be only a
part. Packed data is read in order: shuffle the shards and a buffer of samples.
"""

from __future__ import annotations

from tdiag.evidence.data import Loader, Loaders
from tdiag.evidence.kinds import Budget, Phases, System
from tdiag.evidence.store import Evidence
from tdiag.model.diagnosis import Fix
from tdiag.rules.base import DATA_WAIT, Abstain, Found, Gain, where
from tdiag.rules.examples import GB, budget, loaders, system
from tdiag.rules.feed import RAM_FOR_DATA_FRAC, feed_of
from tdiag.rules.fetch_lines import dataset_place
from tdiag.rules.measures import bytes_, count, ns, text
from tdiag.rules.shares import MOSTLY_FRAC
from tdiag.units import count as counted
from tdiag.units import duration, plural, size

CODE = "TD103"
NAME = "many-small-files"
CLASS = "io"

# Reading so much takes a disk about as long as finding it (10 ms at 100 MB/s): of smaller files, it
# spends most of the time seeking. The packed shards of WebDataset are 100 times larger and more.
SMALL_BYTES = 1 << 20
# Opening, reading and closing a cached file of 20 kB took 17 µs more than reading as much from an
# open one (Python 3.11, ext4, a slow sandboxed core).
OPEN_NS = 17_000


def check(budget: Budget, loaders: Loaders, system: System, phases: Phases | None) -> Found | None:
    fed = feed_of(budget, loaders, phases, system)
    if fed is None:
        return None
    loader = fed.loader
    samples = loader.samples or loader.batch_size or 1
    if loader.opens is None:
        raise Abstain("the files that fetches open were not counted")
    if loader.opens < MOSTLY_FRAC * samples:
        return None
    if loader.opened_bytes is None:
        raise Abstain("the size of the files that fetches open is not known")
    if loader.opened_bytes >= SMALL_BYTES:
        return None
    opening = fed.with_queueing(min(fed.cpu, fed.batches * loader.opens * OPEN_NS))
    folder = loader.open_folders[0][0] if loader.open_folders else ""
    from_folder = f", most of them in {folder}" if folder else ""
    at = dataset_place(loader)
    return Found(
        summary=(
            f"A batch opens {plural(round(loader.opens), 'file')} of {size(loader.opened_bytes)}"
            f"{from_folder}: {counted(loader.opens / samples)} a sample, {duration(fed.wall)} of"
            " fetching a step."
        ),
        evidence=(
            count("files opened per batch", loader.opens, "fetch"),
            count("files opened per sample", loader.opens / samples, "fetch"),
            bytes_("mean size of a file", loader.opened_bytes, "fetch"),
            *((text("folder", folder, "fetch"),) if folder else ()),
            ns("fetches blocked, per step", fed.blocked, "fetch"),
        ),
        fix=Fix(_advice(loader, loader.opens / samples, system) + f"{where(at)}.", "manual"),
        gain=Gain(
            fed.gain_of_saving(opening),
            fed.gain_of_saving(min(fed.wall, opening + fed.blocked)),
            f"low end: {duration(OPEN_NS)} for each file that is not opened; high end: fetches are"
            " not blocked either.",
            DATA_WAIT,
        ),
        at=at,
    )


def _advice(loader: Loader, per_sample: float, system: System) -> str:
    pack = "Pack the files into shards (WebDataset, LMDB, Parquet, one memory-mapped array)"
    if not loader.dataset_len or not loader.opened_bytes:
        return f"{pack} that {loader.dataset_class} reads in order"
    files = round(per_sample * loader.dataset_len)
    total = files * loader.opened_bytes
    pack = pack.replace("the files", f"the {files:,} files, {size(total)} in all,")
    free = system.ram_available_bytes
    if free is not None and total <= RAM_FOR_DATA_FRAC * free:
        pack += f", or read them into memory once ({size(free)} are free)"
    return f"{pack}, in {loader.dataset_class}"


def fires() -> Evidence:
    cold = loaders(
        load_cpu_ns=12e6, opens=64.0, opened_bytes=90_000.0, samples=64.0,
        open_folders=(("/data/photos/train", 64.0),),
    )  # fmt: skip
    step = budget(data_wait_io=48, data_wait_cpu=12, forward=8, backward=10, optimizer=2)
    return Evidence().add(step, cold, system(ram_available_bytes=32 * GB))


def clear() -> Evidence:
    """As many bytes out of one packed file, opened once."""
    packed = loaders(load_cpu_ns=12e6, opens=0.0, opened_bytes=None, samples=64.0)
    step = budget(data_wait_io=48, data_wait_cpu=12, forward=8, backward=10, optimizer=2)
    return Evidence().add(step, packed, system(ram_available_bytes=32 * GB))
