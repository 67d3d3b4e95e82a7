"""The data lie on slower storage than the machine's own

## What it measures
After a run whose fetches read from storage: the time to read some of their files cold, and that for
copies of the same files on a disk of the machine's own.

## Why it is slow
Network file systems and shared disks answer each open and each read later than a disk that is built
in, and share what they deliver with everybody else.

## What to do
Copy the data to the machine's own disk before the training, if they fit; else pack them, so that
fewer requests are made.

## How the gain is computed
From the time for which fetches are blocked, and the ratio of the two trials. Low end: half of that,
since a disk that serves several workers at once may serve each of them later.

## When this advice is wrong
Copying takes time, once a machine: a short run may not earn it back. A server's own cache may
answer faster in the run than it did in the trial, or slower when many use it.
"""

from __future__ import annotations

from tdiag.evidence.data import Loader, Loaders
from tdiag.evidence.kinds import Budget, Phases, System
from tdiag.evidence.storage import Storage
from tdiag.evidence.store import Evidence
from tdiag.model.diagnosis import Fix
from tdiag.rules.base import DATA_WAIT, Abstain, Found, Gain, where
from tdiag.rules.examples import GB, MB, MS, budget, loaders, system
from tdiag.rules.feed import feed_of
from tdiag.rules.fetch_lines import dataset_place
from tdiag.rules.measures import bytes_, count, ns, text
from tdiag.units import duration, significant, size

CODE = "TD104"
NAME = "slower-than-the-machines-own-disk"
CLASS = "io"
AFTER = {
    "TD102": "a faster disk delivers the bytes that are not used faster, too",
}

# Cold reads of two dozen files vary by tens of per cent from trial to trial; twice as long does not
# come from that. Ours.
SLOWER_FACTOR = 2.0
# Of what the trial promises, what several workers at once may leave; ours.
SHARED_FRAC = 0.5


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
        raise Abstain(
            "the storage of the data was not tried: no files were seen to be opened there"
        )
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
            f"Reading a file of {storage.folder}{kind} takes {duration(each)}, a copy of it on the"
            f" machine's own disk {duration(local)}: {significant(ratio)} times as long."
        ),
        evidence=(
            text("folder", storage.folder, "system"),
            text("file system", storage.filesystem or "unknown", "system"),
            ns("reading one of its files, cold", each, "system"),
            ns("a copy on the machine's own disk, cold", local, "system"),
            count("files tried", storage.files, "system"),
            bytes_("their bytes", storage.bytes or 0, "system"),
            ns("fetches blocked, per step", fed.blocked, "fetch"),
        ),
        fix=Fix(_advice(storage, fed.loader) + f"{where(at)}.", "safe"),
        gain=Gain(
            fed.gain_of_saving(saved * SHARED_FRAC),
            fed.gain_of_saving(saved),
            "high end: blocked time shrinks as in the trial; low end: half of that, shared.",
            DATA_WAIT,
        ),
        at=at,
    )


def _advice(storage: Storage, loader: Loader) -> str:
    """Where the data would fit, with the bytes."""
    whole = None
    if loader.dataset_len and loader.batch_size and loader.rchar_bytes:
        whole = loader.rchar_bytes / loader.batch_size * loader.dataset_len
    copy = f"Copy {storage.folder} to the machine's own disk before the training, for instance"
    copy += f" below {storage.local}"
    free = storage.local_free_bytes
    if whole and free is not None:
        if whole > free:
            return (
                f"The data ({size(whole)}) do not fit on the machine's own disk ({size(free)}"
                " free): pack them into large files, so that fewer requests are made, in"
                f" {loader.dataset_class}"
            )
        copy += f" ({size(whole)} of {size(free)} free)"
    return f"{copy}, and read them from there in {loader.dataset_class}"


def fires() -> Evidence:
    return _training(local_ns=12 * MS)


def clear() -> Evidence:
    """The machine's own disk is no faster."""
    return _training(local_ns=160 * MS)


def _training(local_ns: int) -> Evidence:
    tried = Storage(
        folder="/mnt/share/photos", filesystem="nfs4", local="/var/tmp", local_filesystem="ext4",
        local_free_bytes=500 * GB, files=24, bytes=9 * MB, ns=200 * MS, local_ns=local_ns,
    )  # fmt: skip
    cold = loaders(load_cpu_ns=4e6, read_bytes=24e6, rchar_bytes=24e6)
    step = budget(data_wait_io=50, data_wait_cpu=10, forward=8, backward=10, optimizer=2)
    return Evidence().add(step, cold, system(), tried)
