"""Compares the storage of the data with a local disk, in a short test after the run.

Some of the files that fetches opened are read cold (their pages are first dropped from the cache),
then copies of them on a local disk. Files, sizes and calls are the same, so the ratio is the
storage's.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil

from tdiag.probe.wire import events_files

FILES, MOST_BYTES = 24, 1 << 20  # number of files, and bytes read of each: a second at 24 MB/s
WITHIN_S = 3.0  # after this, the files read so far are enough
LISTED = 500  # entries of a folder that are searched for files
# Not all reads over a network count as read from storage.
REMOTE = ("nfs", "cifs", "smb", "fuse", "9p", "ceph", "lustre", "gpfs", "beegfs", "virtiofs", "afs")
NOT_A_DISK = ("tmpfs", "ramfs")
SCRATCH = ("/var/tmp", tempfile.gettempdir())


def try_storage(run_dir: Path) -> None:
    """Write ``storage.json`` if fetches read from storage and the files still exist. Never raises
    for errors of the disk."""
    folder = _folder(run_dir)
    if folder is None:
        return
    with contextlib.suppress(OSError, psutil.Error):
        if found := compare(folder, [Path(name) for name in SCRATCH]):
            (run_dir / "storage.json").write_text(json.dumps(found))


def compare(folder: Path, scratch: Sequence[Path]) -> dict[str, Any] | None:
    """Compare ``folder``'s files with copies of them in the first of ``scratch`` on another disk.

    ``ns`` and ``local_ns`` are the times to read the same ``files`` files with ``bytes`` in total;
    they are missing if there is no other disk to compare with.
    """
    files = _files(folder)
    if not files:
        return None
    found = {"folder": str(folder), "filesystem": filesystem(folder)}
    local = next((x for x in scratch if _other_disk(folder, x)), None)
    if local is None:
        return found
    kept: list[tuple[bytes, int]] = []
    for file in files:
        part = _read_cold(file)
        kept += [part] if part else []
        if sum(ns for _, ns in kept) > WITHIN_S * 1e9:
            break
    if not kept:
        return found
    with tempfile.TemporaryDirectory(prefix="tdiag-", dir=local) as beside:
        copies = [_copy(Path(beside) / str(i), data) for i, (data, _) in enumerate(kept)]
        again = [part for copy in copies if (part := _read_cold(copy)) is not None]
    if len(again) < len(kept):
        return found
    return found | {
        "local": str(local),
        "local_filesystem": filesystem(local),
        "local_free_bytes": shutil.disk_usage(local).free,
        "files": len(kept),
        "bytes": sum(len(data) for data, _ in kept),
        "ns": sum(ns for _, ns in kept),
        "local_ns": sum(ns for _, ns in again),
    }


def filesystem(path: Path) -> str:
    """The type of the file system that holds ``path``, "" if unknown."""
    resolved = path.resolve()
    mounted = {Path(x.mountpoint): x.fstype for x in psutil.disk_partitions(all=True)}
    return next((mounted[p] for p in (resolved, *resolved.parents) if p in mounted), "")


def _folder(run_dir: Path) -> Path | None:
    """The folder in which most files were opened, if fetches read from storage or over a
    network."""
    opened: Counter[str] = Counter()
    read = 0
    for file in events_files(run_dir):
        with contextlib.suppress(OSError):
            fetches = (line for kind, line in file.read() if kind == "fetch")
            read += sum(_count(line, opened) for line in fetches if b'"folders"' in line)
    for name, _ in opened.most_common(1):
        folder = Path(name)
        if read or filesystem(folder).startswith(REMOTE):
            return folder
    return None


def _count(line: bytes, opened: Counter[str]) -> int:
    """Add up the folders of a fetch; returns the bytes that it read from storage."""
    try:
        record = json.loads(line)
        for name, files in record.get("folders") or ():
            opened[str(name)] += int(files)
        return int(record.get("read") or 0)
    except (ValueError, TypeError):
        return 0  # a truncated line


def _files(folder: Path) -> list[Path]:
    """Some files from all over the folder."""
    found: list[Path] = []
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for number, entry in enumerate(entries):
            if number >= LISTED:
                break
            if entry.is_file() and entry.stat().st_size:
                found.append(Path(entry.path))
    return found[:: max(1, len(found) // FILES)][:FILES]


def _other_disk(folder: Path, local: Path) -> bool:
    with contextlib.suppress(OSError):
        apart = folder.stat().st_dev != local.stat().st_dev
        return apart and os.access(local, os.W_OK) and filesystem(local) not in NOT_A_DISK
    return False


def _read_cold(file: Path) -> tuple[bytes, int] | None:
    """The file's beginning, and the time to open and read it, ns; None if it is gone."""
    try:
        _drop(file)
        began = time.perf_counter_ns()
        with file.open("rb", buffering=0) as source:
            data = source.read(MOST_BYTES)
        return data, time.perf_counter_ns() - began
    except OSError:
        return None


def _drop(file: Path) -> None:
    """Drop the file's pages from the cache, if the system can."""
    with file.open("rb") as source:
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(source.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def _copy(file: Path, data: bytes) -> Path:
    """Copy to the disk, not only to the cache."""
    with file.open("wb") as target:
        target.write(data)
        target.flush()
        os.fsync(target.fileno())
    return file
