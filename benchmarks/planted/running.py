"""Runs of a case: the diagnosis of its program, and its twins, alive at once or one by one."""

from __future__ import annotations

import json
import os
import re
import shutil
import statistics
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from tdiag.duel.group import Pace, take_turns
from tdiag.duel.side import Program as Side

FEWEST, MOST = 10, 400
PAIRS = 3  # the fewest whose median leaves one out that other programs disturbed
LONGEST_RUN_S = 300
GROUPS = 2  # of fresh processes: their mean is as near as the median of three
A_SIDE_S = 2.5  # of turns, for each side in each group


class Program(Protocol):
    """What is run; ``one_core``: on one core only."""

    @property
    def name(self) -> str: ...
    @property
    def one_core(self) -> bool: ...
    def command(self) -> list[str]: ...


def start(case: Program, command: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    """One thread, so that on a shared machine threads do not wait for each other."""
    cores = sorted(os.sched_getaffinity(0))
    with subprocess.Popen(
        command,
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        if case.one_core:
            os.sched_setaffinity(process.pid, cores[-1:])
        try:
            out, err = process.communicate(timeout=LONGEST_RUN_S)
        except subprocess.TimeoutExpired:
            process.kill()
            raise
    return subprocess.CompletedProcess(command, process.returncode, out, err)


def diagnose(case: Program, folder: Path) -> dict[str, Any]:
    """The diagnosis of the program in the folder, as JSON."""
    found = folder / "diagnosis.json"
    found.unlink(missing_ok=True)  # what an earlier run left would pass for this one's
    shutil.rmtree(folder / "run", ignore_errors=True)
    run = ["run", "--profiling", "-q", "-o", str(found), "--out", str(folder / "run")]
    tdiag = [str(Path(sys.executable).with_name("tdiag")), *run, *case.command()]
    done = start(case, tdiag, folder)
    if not found.is_file():
        raise RuntimeError(f"no diagnosis, exit code {done.returncode}: {done.stderr[-500:]}")
    result: dict[str, Any] = json.loads(found.read_text())
    return result


def step_ms(case: Program, folder: Path, steps: int) -> float:
    """Milliseconds a step of a bare run."""
    command = [sys.executable, *case.command(), "--steps", str(steps)]
    done = start(case, command, folder)
    found = re.search(r"^(\S+) ms a step$", done.stdout, re.MULTILINE)
    assert found, done.stdout[-300:] + done.stderr[-300:]
    return float(found[1])


def write(files: Mapping[str, str], folder: Path) -> Path:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


def alternating(case: Program, sides: Mapping[str, Path], run_dirs: Path) -> dict[str, list[float]]:
    """Milliseconds a step of each side, one number for each group of fresh processes.

    All are alive and run by turns of some 50 ms, so that they meet the same machine: on a shared
    one, runs of one program differ by 20 % and more from each other. Without a profiler, as
    ``tdiag check`` measures.
    """
    shutil.rmtree(run_dirs, ignore_errors=True)
    variables = {"OMP_NUM_THREADS": "1"}  # as in ``start``
    command = [sys.executable, *case.command()]
    programs = [Side(side, command, folder, variables) for side, folder in sides.items()]
    pace = Pace(most_s=A_SIDE_S * len(sides))
    taken: dict[str, list[float]] = {side: [] for side in sides}
    cores = os.sched_getaffinity(0)
    try:
        if case.one_core:
            os.sched_setaffinity(0, sorted(cores)[-1:])  # the programs inherit it
        for number in range(GROUPS):
            ordered = programs if number % 2 == 0 else programs[::-1]
            found = take_turns(ordered, run_dirs / str(number), pace)
            for side, mine in zip(ordered, found, strict=True):
                taken[side.name].append(statistics.fmean(mine.mean_ns) / 1e6)
    finally:
        os.sched_setaffinity(0, cores)
    return taken


def in_turns(
    case: Program, sides: Mapping[str, Path], slow_ms: float, seconds: float
) -> dict[str, list[float]]:
    """Milliseconds a step of each side, a run of each right after another, their order reversed
    from turn to turn; ``seconds``: that the first side, with steps of ``slow_ms``, trains each
    time. From the second turn on the others train as long, for up to four times as many steps."""
    steps = round(min(MOST, max(FEWEST, seconds * 1e3 / slow_ms)))
    first, *_ = sides
    counts = dict.fromkeys(sides, steps)
    taken: dict[str, list[float]] = {side: [] for side in sides}
    for turn in range(PAIRS):
        for side in sides if turn % 2 == 0 else reversed(sides):
            taken[side].append(step_ms(case, sides[side], counts[side]))
        for side in sides:
            faster = taken[first][-1] / taken[side][-1]
            counts[side] = min(2 * MOST, round(steps * min(4.0, max(1.0, faster))))
    return taken
