"""From paths to evidence: trace files, TensorBoard log folders, folders of ranks."""

from __future__ import annotations

import os
import pickle
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from tdiag.children import program
from tdiag.errors import RunError
from tdiag.evidence.device import DeviceParts
from tdiag.evidence.from_trace import device_evidence
from tdiag.evidence.machine import Environment
from tdiag.evidence.steps import TracedSteps
from tdiag.evidence.store import Evidence
from tdiag.model.notes import Captured
from tdiag.model.threshold import Threshold
from tdiag.trace import Trace, read_trace
from tdiag.trace.inflate import Progress
from tdiag.trace.parallel import cores
from tdiag.trace.split import NOT_A_TRACE_HINT

# File names of torch.profiler.tensorboard_trace_handler: worker, time of writing.
HANDLER_NAME = re.compile(r"^(?P<worker>.+?)(\.(?P<time>\d+))?\.pt\.trace\.json(\.gz)?$")
RANK_IN_NAME = re.compile(r"rank[_-]?(\d+)|worker[_-]?(\d+)", re.IGNORECASE)
UNKNOWN_DEVICE, NO_DEVICE = "unknown device", "no device traced"
SUFFIXES = (".json", ".json.gz")

NOT_IN_A_TRACE = "a trace does not hold it; `tdiag run` measures it"


@dataclass(frozen=True)
class TracedFile:
    """``rank``: from the trace, else from the file name, else None. ``world``: the number of ranks
    the trace gives, else None."""

    path: Path
    rank: int | None
    evidence: Evidence
    world: int | None = None

    def at(self, path: Path) -> TracedFile:
        """The same, under the file name the user gave."""
        return replace(self, path=path)


def find_traces(paths: Sequence[Path]) -> list[Path]:
    """The trace files that these files and folders stand for.

    In a folder: the files of the TensorBoard handler, the latest of each worker; if there are none,
    every JSON file. Raises RunError for a missing path or a folder without traces.
    """
    found: list[Path] = []
    for path in paths:
        if not path.is_dir():
            found.append(path)
            continue
        inside = sorted(p for p in path.rglob("*") if p.name.endswith(SUFFIXES) and p.is_file())
        mine = _latest([p for p in inside if HANDLER_NAME.match(p.name)]) or inside
        if not mine:
            raise RunError(f"{path} holds no .json or .json.gz file", "name a trace or its folder")
        found += mine
    return found


def _latest(files: list[Path]) -> list[Path]:
    newest: dict[tuple[Path, str], tuple[int, Path]] = {}
    for path in files:
        if match := HANDLER_NAME.match(path.name):
            key, time = (path.parent, match["worker"]), int(match["time"] or 0)
            if key not in newest or time > newest[key][0]:
                newest[key] = (time, path)
    return sorted(path for _, path in newest.values())


def read_files(
    paths: Sequence[Path], progress: Progress | None = None
) -> list[TracedFile | RunError]:
    """The evidence of each file, in order, or the error that prevented it; several files are read
    in one process each."""
    if len(paths) == 1:
        return [or_error(paths[0], progress)]
    return list(in_children(paths))


def in_children(paths: Sequence[Path]) -> Iterator[TracedFile | RunError]:
    """In the order of the files. Each is read in its own process, as many at once as there are
    cores."""
    with ThreadPoolExecutor(cores()) as pool:
        yield from pool.map(_in_child, paths)


def read_file(path: Path, progress: Progress | None = None, *, alone: bool = True) -> TracedFile:
    """The evidence of one trace file. ``alone``: no other file is read at the same time. Raises
    RunError if it is not a trace, or a trace of another program (such as a browser)."""
    trace = read_trace(path, progress, alone=alone)
    evidence = device_evidence(trace)
    if evidence.get(TracedSteps) is None:
        raise RunError(f"{path.name} holds no torch.profiler events", NOT_A_TRACE_HINT)
    evidence.otherwise = NOT_IN_A_TRACE
    rank = _rank(trace)
    evidence.add(_environment(trace, rank or 0))
    evidence.capture["trace"] = Captured("captured")
    world = trace.distributed.get("world_size")
    return TracedFile(path, rank, evidence, world if isinstance(world, int) else None)


UNRELATED_FRAC = Threshold(
    0.5,
    "of the kernels of the trace that names fewer",
    "Ranks of one job both name 1.0 of them (DLRM on 8 V100s), three recordings of one program 0.83"
    " to 0.98, unrelated public traces at most 0.40, but for one of two copies and no kernels.",
)


def unrelated(files: Sequence[TracedFile]) -> str:
    """Why these traces cannot be the ranks of one job; "" if they can be."""
    first = files[0]
    worlds = {file.world: file.path.name for file in files if file.world is not None}
    if len(worlds) > 1:
        (one, a), (other, b) = list(worlds.items())[:2]
        return f"{a} is from a job of {one} ranks, {b} from one of {other}"
    if worlds and len(files) > min(worlds):
        return f"there are {len(files)}, but {next(iter(worlds.values()))} is one of {min(worlds)}"
    for file in files[1:]:
        devices = _device(first), _device(file)
        if all(devices) and devices[0] != devices[1]:
            return (
                f"{first.path.name} was recorded on {devices[0]}, {file.path.name} on {devices[1]}"
            )
        mine, theirs = _work(first), _work(file)
        if len(mine & theirs) < UNRELATED_FRAC * min(len(mine), len(theirs)):
            return (
                f"of {len(mine | theirs)} kernels {first.path.name} and {file.path.name}"
                f" have {len(mine & theirs)} in common"
            )
    return ""


def _device(file: TracedFile) -> str:
    """The device it was recorded on; "" if the trace does not say."""
    about = file.evidence.get(Environment)
    return about.device if about and about.device not in (UNKNOWN_DEVICE, NO_DEVICE) else ""


def _work(file: TracedFile) -> set[str]:
    """Names of its kernels; empty for a sampled trace or one without kernels."""
    steps, parts = file.evidence.get(TracedSteps), file.evidence.get(DeviceParts)
    if parts is None or (steps and steps.sampled):
        return set()
    return {part.name for part in parts.kernels}


def or_error(
    path: Path, progress: Progress | None = None, *, alone: bool = True
) -> TracedFile | RunError:
    try:
        return read_file(path, progress, alone=alone)
    except RunError as error:
        return error


def _in_child(path: Path) -> TracedFile | RunError:
    """A killed child is started once more: the memory shortage may have been brief."""
    for _ in range(2):
        child = subprocess.run(
            [*program("tdiag.evidence.from_trace.trace_files"), os.fspath(path)],
            capture_output=True,
            check=False,
        )
        if child.returncode >= 0:
            break
    try:
        found: TracedFile | RunError = pickle.loads(child.stdout)
    except (EOFError, pickle.UnpicklingError):
        why = child.stderr.decode(errors="replace").strip().splitlines() or ["it was killed"]
        return RunError(f"{path.name}: its reader ended early: {why[-1]}")
    return found


def _rank(trace: Trace) -> int | None:
    rank = trace.distributed.get("rank")
    if isinstance(rank, int):
        return rank
    match = RANK_IN_NAME.search(trace.path.name)
    return int(match[1] or match[2]) if match else None


def _environment(trace: Trace, rank: int) -> Environment:
    """What the trace says about the machine it was recorded on; the rest stays empty."""
    used = set(np.unique(trace.device[trace.device >= 0]).tolist())
    # deviceProperties lists every device of the machine, traced or not.
    names = [str(d["name"]) for d in trace.device_properties if d.get("id") in used and "name" in d]
    world = trace.distributed.get("world_size")
    host = trace.metadata.get("host_name")
    return Environment(
        torch="",
        python="",
        device=next(filter(None, names), UNKNOWN_DEVICE if used else NO_DEVICE),
        device_count=len(used),
        tdiag="",
        command=(),
        script=trace.path.name,
        hostname=host if isinstance(host, str) else "",
        platform="",
        rank=rank,
        world_size=world if isinstance(world, int) else 1,
    )


if __name__ == "__main__":
    # Imported by its own name, so that what is pickled can be found again.
    from tdiag.evidence.from_trace import trace_files

    sys.stdout.buffer.write(pickle.dumps(trace_files.or_error(Path(sys.argv[1]), alone=False)))
