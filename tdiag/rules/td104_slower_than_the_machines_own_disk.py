"""The data is on slower storage than the local disk

## What it measures
After a run whose fetches read from storage: the time to read some of their files cold, and to read
copies of them on a local disk.

## Why it is slow
Network file systems and shared disks answer each open and read later than a local disk, and share
their throughput among all users.

## What to do
Copy the data to the local disk before training if it fits. Otherwise pack it into large files, so
that fewer requests are made.

## How the gain is computed
From the blocked time of fetches and the ratio of the two trials. Low end: half of that, because
several workers share the disk.

## When this advice is wrong
Copying takes time once per machine, which a short run may not recover. The server's cache may
answer faster in the run than in the trial, or slower under load.
"""

from __future__ import annotations

from tdiag.evidence.feeding import Loader, Loaders, Storage
from tdiag.evidence.machine import System
from tdiag.evidence.steps import Budget, Phases
from tdiag.evidence.store import Evidence
from tdiag.model.diagnosis import Fix
from tdiag.model.threshold import Threshold
from tdiag.rules.base import DATA_WAIT, Abstain, Found, Gain, bytes_, count, ns, text, where
from tdiag.rules.examples import GB, MB, MS, budget, loaders, system
from tdiag.rules.feed import feed_of
from tdiag.rules.fetch_lines import dataset_place
from tdiag.rules.thresholds import LOW_END_FRAC
from tdiag.units import duration, significant, size

CODE = "TD104"
NAME = "slower-than-the-machines-own-disk"
CLASS = "io"
UNTRIED = "the data must be copied first; `ceiling.data` bounds the gain"
AFTER = {
    "TD102": "a faster disk still reads the bytes that are not used",
}

SLOWER_FACTOR = Threshold(
    2,
    "times the local disk",
    "Heuristic: cold reads of two dozen files vary by tens of per cent, which does not explain a"
    " factor of two.",
)


def check(
    budget: Budget,
    loaders: Loaders,
    system: System,
    phases: Phases | None,
    storage: Storage | None,
) -> Found | None:
    fed = feed_of(budget, loaders, phases, system)
    if fed is None or not fed.blocked_mostly:
        return None
    if storage is None:
        raise Abstain("the data's storage was not timed: no opened data files were seen")
    if storage.ns is None or not storage.local_ns or not storage.files:
        return None  # no other disk
    if storage.ns < SLOWER_FACTOR * storage.local_ns:
        return None
    ratio = storage.ns / storage.local_ns
    saved = fed.blocked * (1 - 1 / ratio)
    each, local = storage.ns / storage.files, storage.local_ns / storage.files
    at = dataset_place(fed.loader)
    kind = f" ({storage.filesystem})" if storage.filesystem else ""
    return Found(
        summary=(
            f"Reading a file of {storage.folder}{kind} takes {duration(each)}, {significant(ratio)}"
            f" times as long as its copy on the local disk ({duration(local)})."
        ),
        evidence=(
            text("folder", storage.folder, "system"),
            text("file system", storage.filesystem or "unknown", "system"),
            ns("reading one of its files, cold", each, "system"),
            ns("a copy on the local disk, cold", local, "system"),
            count("files tried", storage.files, "system"),
            bytes_("their bytes", storage.bytes or 0, "system"),
            ns("fetches blocked, per step", fed.blocked, "fetch"),
        ),
        fix=_fix(storage, fed.loader),
        gain=Gain(
            fed.gain_of_saving(saved * LOW_END_FRAC),
            fed.gain_of_saving(saved),
            "high end: waits shrink as much as the trial's reads did; low end: half of that,"
            " because several workers share the disk.",
            DATA_WAIT,
        ),
        at=at,
    )


def _fix(storage: Storage, loader: Loader) -> Fix:
    """A copy if the data fits on the local disk or its size is unknown, else packing."""
    read = f"in {loader.dataset_class}{where(dataset_place(loader))}."
    whole = None
    if loader.dataset_len and loader.batch_size and loader.rchar_bytes:
        whole = loader.rchar_bytes / loader.batch_size * loader.dataset_len
    free, fits = storage.local_free_bytes, ""
    if whole and free is not None:
        if whole > free:
            return Fix(
                f"The data ({size(whole)}) does not fit on the local disk ({size(free)} free). Pack"
                f" it into large files, so that fewer requests are made, and read it {read}",
                "safe",
                action="Pack the data into large files",
            )
        fits = f" ({size(whole)} of {size(free)} free)"
    return Fix(
        f"Copy {storage.folder} to the local disk before training, for instance below"
        f" {storage.local}{fits}. Read the copy {read}",
        "safe",
        action="Copy the data to the local disk",
    )


def fires() -> Evidence:
    return _training(local_ns=12 * MS)


def clear() -> Evidence:
    """The local disk is no faster."""
    return _training(local_ns=160 * MS)


def _training(local_ns: int) -> Evidence:
    tried = Storage(
        folder="/mnt/share/photos", filesystem="nfs4", local="/var/tmp", local_filesystem="ext4",
        local_free_bytes=500 * GB, files=24, bytes=9 * MB, ns=200 * MS, local_ns=local_ns,
    )  # fmt: skip
    cold = loaders(load_cpu_ns=4e6, read_bytes=24e6, rchar_bytes=24e6)
    step = budget(data_wait_io=50, data_wait_cpu=10, forward=8, backward=10, optimizer=2)
    return Evidence().add(step, cold, system(), tried)
