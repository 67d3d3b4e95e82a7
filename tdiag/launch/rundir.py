"""The run directory: made before the program starts, so that a typo cannot lose a long run.

Layout and meaning of every file: docs/run-directory.md.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import json
import os
import re
import shutil
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tdiag.errors import OccupiedError, RunError
from tdiag.model.threshold import Threshold
from tdiag.probe.wire import CONFIG, CONTROL, EVENTS, RUN, TENSORBOARD

SCHEMA = 1
RUNS = Path(".tdiag") / "runs"
CHECKS = Path(".tdiag") / "checks"
TRIALS = Path(".tdiag") / "trials"
SCALINGS = Path(".tdiag") / "scaling"
LATEST = "latest"
MIN_FREE_BYTES = Threshold(
    64 << 20,
    "bytes",
    "Heuristic: the largest file of a run is a trace: 14 to 31 bytes per event compressed (twelve"
    " traces from as many sources) and about 300 before, as torch.profiler writes it first: room"
    " for 200,000 events. With less space, a long run would end in a truncated capture.",
)


def create(label: str, out: Path | None = None) -> Path:
    """Make the run directory, mode 0700, and return its absolute path.

    ``out``: this directory (new or empty) instead of ``.tdiag/runs/<utc>-<label>``.
    Raises RunError if it cannot be written, is not empty, or the disk is full.
    """
    path = out or RUNS / _name(label)
    try:
        path = path.absolute()
        path.parent.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(path.parent).free
        if free < MIN_FREE_BYTES:
            raise OSError(errno.ENOSPC, f"only {free >> 20} MB free")
        if out is None:
            _ignore(path.parent.parent)
            path = fresh(path)
        else:
            path.mkdir(mode=0o700, exist_ok=True)
            path.chmod(0o700)
            if any(path.iterdir()):
                raise occupied(out)
        furnish(path)
    except OSError as error:
        raise unwritable(path, error) from None
    if out is None:
        _link(path)
    return path


def furnish(path: Path) -> None:
    """Create the initial contents of a run directory. Raises OccupiedError if another tdiag was
    faster, OSError if it cannot be written."""
    try:
        (path / EVENTS).mkdir()
    except FileExistsError:
        raise OccupiedError(f"{path}: another run began in it just now") from None
    for folder in (CONTROL, TENSORBOARD):
        (path / folder).mkdir()
    (path / CONFIG).write_text("{}\n")


def create_check(label: str, among: Path = CHECKS) -> Path:
    """Make the folder of a check or a trial, which holds a run directory for each process that it
    starts.

    Raises RunError if it cannot be written.
    """
    path = (among / _name(label)).absolute()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _ignore(path.parent.parent)
        path = fresh(path)
    except OSError as error:
        raise unwritable(path, error) from None
    return path


def create_scaling(label: str, out: Path | None) -> Path:
    """Make the folder for the runs of `tdiag run --scaling`, one run directory per number of ranks.
    ``out``: use this folder, which must be new or empty. Raises RunError if it cannot be
    written."""
    if out is None:
        return create_check(label, SCALINGS)
    path = out.absolute()
    try:
        path.mkdir(parents=True, exist_ok=True)
        if any(path.iterdir()):
            raise occupied(out)
    except OSError as error:
        raise unwritable(path, error) from None
    return path


def occupied(out: Path) -> OccupiedError:
    """The error for a folder that is not empty."""
    return OccupiedError(
        f"--out {out}: the directory is not empty",
        "name a new directory; tdiag never overwrites a run",
    )


def unwritable(path: Path, error: OSError) -> RunError:
    """The one message for every reason why a run directory cannot be written."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return RunError(
            f"the disk is full: {path} ({error.strerror})",
            f"free {int(MIN_FREE_BYTES) >> 20} MB, or write elsewhere: tdiag run --out DIR …",
        )
    return RunError(
        f"cannot write the run directory {path}: {error.strerror or error}",
        "write elsewhere: tdiag run --out DIR …",
    )


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Replace a JSON file of the run directory; see :func:`write_text`."""
    write_text(path, json.dumps(value, indent=1) + "\n")


def write_text(path: Path, text: str) -> None:
    """Replace a file in one step, so that a reader never sees half of it, whatever happens.

    Raises RunError if it cannot be written; the old file then still exists.
    """
    part = path.with_name(path.name + ".part")
    try:
        part.write_text(text, encoding="utf-8")
        part.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            part.unlink()
        raise unwritable(path.parent, error) from None


def find(run: str | None) -> Path:
    """The run directory that the user means: a path, a name below ``.tdiag/runs``, or the latest.

    Raises RunError if there is none.
    """
    if run is None:
        runs = [p for p in (RUNS / LATEST, *_newest_first()) if (p / RUN).is_file()]
        if not runs:
            raise RunError("there is no run here yet", "tdiag run train.py --profiling makes one")
        return runs[0].resolve()
    for path in (Path(run), RUNS / run):
        if (path / RUN).is_file():
            return path.resolve()
    names = ", ".join(p.name for p in _newest_first()[:3])
    raise RunError(
        f"{run} is not a run directory (no {RUN} in it)",
        f"the newest runs here: {names}" if names else "tdiag run makes one",
    )


def _newest_first() -> list[Path]:
    if not RUNS.is_dir():
        return []
    return sorted((p for p in RUNS.iterdir() if p.name != LATEST), reverse=True)


def _name(label: str) -> str:
    safe = re.sub(r"[^\w.-]+", "_", label).strip("._") or "run"
    return time.strftime("%Y%m%dT%H%M%SZ", time.gmtime()) + "-" + safe


def fresh(path: Path) -> Path:
    """Make this folder, with a number if it exists (a run in the same second), safely even if
    others do the same at the same time. Raises OSError."""
    for number in itertools.count(1):
        made = path.with_name(f"{path.name}-{number}") if number > 1 else path
        with contextlib.suppress(FileExistsError):
            made.mkdir(mode=0o700)
            break
    return made


def _ignore(folder: Path) -> None:
    """Keep runs out of the user's git, as linters do with their caches."""
    mark = folder / ".gitignore"
    if not mark.exists():
        mark.write_text("*\n")


def _link(path: Path) -> None:
    """Point ``latest`` at the run; on a file system without links only this shortcut is missing."""
    part = path.with_name(f".{LATEST}-{os.getpid()}")
    with contextlib.suppress(OSError):
        part.symlink_to(path.name)
        part.replace(path.with_name(LATEST))
