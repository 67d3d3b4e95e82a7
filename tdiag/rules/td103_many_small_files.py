"""Each batch opens many small files

## What it measures
Files that Python opens during fetches, by folder, and the mean size of a few of them.

## Why it is slow
Opening a file looks up its name, its permissions and its location; if these are not cached, it
waits for the disk or the server. Many small files are read at a fraction of the speed of one large
file.

## What to do
Pack them: tar shards (WebDataset), LMDB, Parquet, one memory-mapped array. Or read all of them into
memory once, if they fit.

## How the gain is computed
Low end: opening and closing cached files. High end: fetches no longer block either, because the
system reads ahead in one large file.

## When this advice is wrong
Files that a library opens in C (OpenCV, libjpeg, DALI) are not seen, so this may be only a part.
Packed data is read in order: shuffle the shards, and a buffer of samples.
"""

from __future__ import annotations

from tdiag.evidence.feeding import Loader, Loaders
from tdiag.evidence.machine import System, Threads
from tdiag.evidence.steps import Budget, Phases
from tdiag.evidence.store import Evidence
from tdiag.model.diagnosis import Fix
from tdiag.model.threshold import MAJORITY_FRAC, Threshold
from tdiag.rules.base import DATA_WAIT, Abstain, Found, Gain, bytes_, count, ns, text, where
from tdiag.rules.examples import GB, budget, loaders, system
from tdiag.rules.feed import RAM_FOR_DATA_FRAC, feed_of, share_of_rank
from tdiag.rules.fetch_lines import dataset_place
from tdiag.units import count as counted
from tdiag.units import duration, plural, size

CODE = "TD103"
NAME = "many-small-files"
CLASS = "io"
UNTRIED = "the files must be packed first; `ceiling.data` bounds the gain"

SMALL_BYTES = Threshold(
    1 << 20,
    "bytes",
    "By arithmetic: at 100 MB/s a disk reads 1 MiB in the 10 ms of a seek; below, seeking takes"
    " most of the time. Shards of WebDataset are 100 times larger and more.",
)
OPEN_NS = Threshold(
    9_000,
    "ns per file",
    "Measured with Python 3.11 on ext4, one slow core: opening, reading and closing a cached"
    " file of 20 kB took 9 to 17 µs more than reading as much from an open one, on two machines"
    " (benchmarks/rule_constants.py td103).",
)


def check(
    budget: Budget,
    loaders: Loaders,
    system: System,
    phases: Phases | None,
    threads: Threads | None,
) -> Found | None:
    system = share_of_rank(system, threads)
    fed = feed_of(budget, loaders, phases, system)
    if fed is None:
        return None
    loader = fed.loader
    samples = loader.samples or loader.batch_size or 1
    if loader.opens is None:
        raise Abstain("the files that fetches open were not counted")
    if loader.opens < MAJORITY_FRAC * samples:
        return None
    if loader.opened_bytes is None:
        raise Abstain("the size of the files that fetches open was not measured")
    if loader.opened_bytes >= SMALL_BYTES:
        return None
    opening = fed.with_queueing(min(fed.cpu, fed.batches * loader.opens * OPEN_NS))
    folder = loader.open_folders[0][0] if loader.open_folders else ""
    from_folder = f", most of them in {folder}" if folder else ""
    at = dataset_place(loader)
    return Found(
        summary=(
            f"A batch opens {plural(round(loader.opens), 'file')} of {size(loader.opened_bytes)}"
            f"{from_folder}: {counted(loader.opens / samples)} a sample. Fetching takes"
            f" {duration(fed.wall)} per step."
        ),
        evidence=(
            count("files opened per batch", loader.opens, "fetch"),
            count("files opened per sample", loader.opens / samples, "fetch"),
            bytes_("mean size of a file", loader.opened_bytes, "fetch"),
            *((text("folder", folder, "fetch"),) if folder else ()),
            ns("fetches blocked, per step", fed.blocked, "fetch"),
        ),
        fix=Fix(
            _advice(loader, loader.opens / samples, system) + f"{where(at)}.",
            "manual",
            action="Pack the small files into shards",
        ),
        gain=Gain(
            fed.gain_of_saving(opening),
            fed.gain_of_saving(min(fed.wall, opening + fed.blocked)),
            f"low end: {duration(OPEN_NS)} for each file that is no longer opened; high end:"
            " fetches no longer wait for storage either.",
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
    """The same bytes from one packed file, opened once."""
    packed = loaders(load_cpu_ns=12e6, opens=0.0, opened_bytes=None, samples=64.0)
    step = budget(data_wait_io=48, data_wait_cpu=12, forward=8, backward=10, optimizer=2)
    return Evidence().add(step, packed, system(ram_available_bytes=32 * GB))
