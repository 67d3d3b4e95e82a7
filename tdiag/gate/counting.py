"""A short run of each side for facts that noise cannot change: counts, and which rules fire."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tdiag.diagnose import diagnose
from tdiag.duel.side import Program, ProgramFailed, end, spawn, tail, write_record
from tdiag.evidence.from_run import load_run
from tdiag.evidence.from_run.event_files import Process, lead_of, read_events
from tdiag.evidence.store import Evidence
from tdiag.launch import rundir
from tdiag.model.diagnosis import Diagnosis
from tdiag.probe.wire import CONFIG, COUNTS, OFF, SAMPLE, STANDARD, events_files

TIME_BUDGET_S = 60.0
COUNTED = tuple(name for name in STANDARD if name != SAMPLE)


@dataclass(frozen=True)
class Counted:
    """``lead``: None if no step was seen."""

    run_dir: Path
    evidence: Evidence
    diagnosis: Diagnosis
    lead: Process | None


def count(programs: Sequence[Program], folder: Path) -> list[Counted]:
    """Run the programs at the same time, because nothing is timed, each into its own run directory;
    one after the other if the device has no memory for all.

    Raises ProgramFailed if one fails.
    """
    try:
        return _beside(programs, folder)
    except ProgramFailed as failed:
        if not failed.no_room or len(programs) == 1:
            raise
    return [counted for program in programs for counted in _beside([program], folder / "alone")]


def _beside(programs: Sequence[Program], folder: Path) -> list[Counted]:
    run_dirs = [rundir.create(p.name, folder / f"counts-{p.name}") for p in programs]
    started: list[subprocess.Popen[bytes]] = []
    try:
        for program, run_dir in zip(programs, run_dirs, strict=True):
            started.append(_start(program, run_dir))
        for process, program, run_dir in zip(started, programs, run_dirs, strict=True):
            code = process.wait()
            write_record(program, run_dir, code)
            forced = -code == signal.SIGTERM and _forced(run_dir)
            if code and not forced:
                raise ProgramFailed(program.name, code, tail(run_dir))
    finally:
        for process in started:
            end(process)
    return [_read(run_dir) for run_dir in run_dirs]


def _start(program: Program, run_dir: Path) -> subprocess.Popen[bytes]:
    config = {"plan": COUNTS, "profiling": True, "steps": None, "time_budget_s": TIME_BUDGET_S,
              "windows": COUNTED, "sampler": OFF, "sampler_hint": ""}  # fmt: skip
    rundir.write_json(run_dir / CONFIG, config)
    return spawn(program, run_dir)


def _forced(run_dir: Path) -> bool:
    """Whether the script swallowed SystemExit, so the probe ended it: this is not a failure."""
    return any(kind == "forced" for file in events_files(run_dir) for kind, _ in file.read())


def _read(run_dir: Path) -> Counted:
    evidence = load_run(run_dir)
    diagnosis = diagnose(evidence)
    return Counted(run_dir, evidence, diagnosis, lead_of(read_events(run_dir)))
