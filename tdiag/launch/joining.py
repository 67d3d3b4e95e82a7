"""One run directory for a job on several machines, in a folder that all of them can see.

The first `tdiag run` makes the run directory as on one machine. Each further machine makes a
complete run directory below it, ``nodes/<hostname>``, so that process ids, requests and samples
cannot collide. A reader of the run reads all of them.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import re
import shlex
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tdiag.errors import OccupiedError
from tdiag.launch import rundir
from tdiag.launch.target import Target
from tdiag.model.threshold import Threshold
from tdiag.probe.wire import CONTROL, EVENTS, NODES, REPORTED, RUN, parts

SILENT_S = Threshold(
    60.0,
    "s without a sample of the machine",
    "By arithmetic: a run in progress writes one every half second; an NFS client sees it after"
    " 60 s at most (acregmax and acdirmax of nfs(5)).",
)
# The time between a run directory's creation and its run.json: two small files are written.
RECORD_WITHIN_S = 10.0
# The number of processes of the job, as launchers put it into the environment.
WORLD_SIZES = ("WORLD_SIZE", "SLURM_NTASKS", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE")
# Launcher options whose value differs between machines (torchrun, accelerate, deepspeed), with `_`
# or `-` between the words.
OF_A_MACHINE = {"node-rank", "machine-rank", "local-addr"}


def open_run(target: Target, command: Sequence[str], out: Path | None) -> Path:
    """A new run directory, or a part of the run directory ``out`` if the same job is running in it.
    Raises RunError if neither is possible."""
    try:
        return rundir.create(target.label(), out)
    except OccupiedError:
        if out is None or not has_parts(target):
            raise
        return _join(out, command)


def has_parts(target: Target, environment: Mapping[str, str] = os.environ) -> bool:
    """Whether the program may be part of a larger job: a launcher, or a program that one
    started."""
    sizes = (environment.get(name, "") for name in WORLD_SIZES)
    return target.kind == "launcher" or any(size.isdigit() and int(size) > 1 for size in sizes)


def shared(part: Path) -> Path:
    """The run directory that this part belongs to; for one machine the part itself."""
    return part.parent.parent if part.parent.name == NODES else part


def awaited(part: Path) -> tuple[str, ...]:
    """Names of the other machines on which the job still runs."""
    now_s = _newest_s(part)
    others = (Path(found) for found in parts(shared(part)) if Path(found) != part)
    return tuple(
        str(record.get("hostname"))
        for other in others
        if (record := _record(other)) and _under_way(other, record, now_s)
    )


def reporting_elsewhere(part: Path) -> tuple[str, ...]:
    """Names of the other machines if one of them makes the report: when several end at the same
    moment, the first to ask here does."""
    others = [Path(found) for found in parts(shared(part)) if Path(found) != part]
    claim = shared(part) / CONTROL / REPORTED
    try:
        os.close(os.open(claim, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    except FileExistsError:
        # Who asked long ago reported without this machine, which was silent then.
        if _newest_s(part) - claim.stat().st_mtime < SILENT_S:
            return tuple(str((_record(other) or {}).get("hostname")) for other in others)
    except OSError:
        pass  # then each makes the same report
    return ()


def _join(out: Path, command: Sequence[str]) -> Path:
    path, nodes = out.absolute(), out.absolute() / NODES
    hint = "name a new directory; only other machines can join a running job"
    record = _record_soon(path)
    if record is None or record.get("end_unix_ns") is not None:
        raise OccupiedError(f"--out {out}: the directory is not empty", hint)
    words = [str(word) for word in record.get("command") or ()]
    if alike(words) != alike(command):
        raise OccupiedError(f"--out {out}: another job is in it: {shlex.join(words)}", hint)
    try:
        nodes.mkdir(mode=0o700, exist_ok=True)
        os.utime(nodes)
        if not _under_way(path, record, nodes.stat().st_mtime):
            with contextlib.suppress(OSError):  # another machine has just joined
                nodes.rmdir()
            raise OccupiedError(f"--out {out}: the run in it was killed", hint)
        part = rundir.fresh(nodes / (re.sub(r"[^\w.-]+", "_", platform.node()) or "node"))
        rundir.furnish(part)
    except OSError as error:
        raise rundir.unwritable(path, error) from None
    return part


def _record_soon(path: Path) -> dict[str, Any] | None:
    """``run.json`` of a run that is just starting, as soon as it exists."""
    until = time.monotonic() + RECORD_WITHIN_S
    while (record := _record(path)) is None:
        if not (path / EVENTS).is_dir() or time.monotonic() > until:
            return None
        time.sleep(0.1)
    return record


def _record(part: Path) -> dict[str, Any] | None:
    try:
        found = json.loads((part / RUN).read_text())
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None


def _under_way(part: Path, record: Mapping[str, Any], now_s: float) -> bool:
    """Whether the run is in progress. ``now_s``: by the file system's clock, which all machines
    share."""
    return record.get("end_unix_ns") is None and now_s - _newest_s(part) < SILENT_S


def _newest_s(part: Path) -> float:
    files = (part / RUN, part / "system.jsonl")
    return max((file.stat().st_mtime for file in files if file.is_file()), default=0.0)


def alike(command: Sequence[object]) -> list[str]:
    """The words that are the same on every machine of a job."""
    found: list[str] = []
    skip = False
    for word in map(str, command):
        name, equals, _ = word.partition("=")
        own = name.startswith("--") and name.strip("-").replace("_", "-") in OF_A_MACHINE
        if not skip and not own:
            found.append(word)
        skip = own and not equals and not skip
    return found
