"""Watches one cell of a notebook: the probe in its kernel, py-spy and the system from outside."""

from __future__ import annotations

import contextlib
import json
import os
import platform
import re
import subprocess
import sys
import time
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import tdiag
from tdiag.children import program
from tdiag.errors import UsageError
from tdiag.launch import rundir
from tdiag.launch.loading import PROBE, PROBE_FOLDER, load_probe
from tdiag.launch.process import Ended
from tdiag.launch.progress import Progress
from tdiag.launch.session import RunOptions, closing_notes, not_watched
from tdiag.probe import wire
from tdiag.sample.pyspy import ABSENT, allow_hint, can_sample


class CellSource(NamedTuple):
    """A cell that has run. ``name``: the name of its code object. ``label``: its name in the
    notebook, empty if the code is not the user's but the call of the magic."""

    name: str
    label: str
    text: str


class WatchedCell:
    """One watched cell; call ``end`` whatever the cell did. Raises TdiagError only before watching
    starts."""

    def __init__(self, label: str, options: RunOptions) -> None:
        if PROBE in sys.modules or os.environ.get(wire.RUN_VARIABLE):
            raise UsageError("tdiag already watches this process")
        self.run_dir = rundir.create(label)
        self.record: dict[str, Any] = {
            "schema": rundir.SCHEMA,
            "command": ["%%tdiag", label],
            "script": label,
            "cwd": str(Path.cwd()),
            "start_unix_ns": time.time_ns(),
            "end_unix_ns": None,
            "exit_code": None,
            "signal": None,
            "options": asdict(options),
            "python": sys.executable,
            "python_version": platform.python_version(),
            "torch_version": None,
            "tdiag": tdiag.__version__,
            "hostname": platform.node(),
            "platform": platform.platform(),
            "notes": [],
        }
        found = can_sample(platform.python_version())
        config = {
            "profiling": options.profiling,
            "steps": options.steps,
            "time_budget_s": options.time_budget_s,
            "windows": wire.STANDARD,
            "sampler": wire.PY_SPY if found else wire.IN_PROCESS,
            "sampler_hint": allow_hint() if found else ABSENT,
            wire.KERNEL: True,
        }
        rundir.write_json(self.run_dir / wire.CONFIG, config)
        rundir.write_json(self.run_dir / wire.RUN, self.record)

    def begin(self) -> None:
        self.beside = subprocess.Popen(
            [*program("tdiag.launch.beside"), str(self.run_dir), str(os.getpid())],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        load_probe(PROBE_FOLDER).start(str(self.run_dir))

    def end(self, error: BaseException | None, sources: Iterable[CellSource]) -> bool:
        """Remove everything of tdiag from the kernel. ``error``: the exception that ended the cell.
        Returns whether tdiag itself ended the cell because the evidence was complete."""
        probe = sys.modules[PROBE]
        probe.stop(error)
        probe.forget()
        assert self.beside.stdin is not None and self.beside.stdout is not None
        with self.beside.stdout as over, contextlib.suppress(OSError):  # it may have failed
            self.beside.stdin.write(
                b"."
            )  # closing it is not enough: surviving loader workers hold the pipe open
            self.beside.stdin.close()
            over.read()
        self.beside.wait()  # it has detached itself and goes on
        name_cells(self.run_dir, sources, self.record["start_unix_ns"])
        progress = Progress(self.run_dir)
        progress.look()
        stopped = isinstance(error, SystemExit) and progress.stopped()
        notes = closing_notes(Ended(0, None, int(isinstance(error, KeyboardInterrupt))), progress)
        if error is not None and not stopped and not isinstance(error, KeyboardInterrupt):
            notes.append(f"the cell ended with {type(error).__name__}: {str(error)[:200]}")
        notes += not_watched(self.run_dir)
        self.record.update(end_unix_ns=time.time_ns(), exit_code=0, notes=notes)
        rundir.write_json(self.run_dir / wire.RUN, self.record)
        return stopped


def name_cells(run_dir: Path, sources: Iterable[CellSource], before_unix_ns: int) -> None:
    """Keep the sources of the cells that the evidence names, in files dated before the run, and
    make the evidence name these files. A cell's code is named ``<ipython-input-5-0a1b>`` or like a
    file in a temporary folder that does not exist, so no one could look up its lines."""
    folder = run_dir / wire.CELLS
    recorded = [*run_dir.glob(f"{wire.EVENTS}/*.jsonl"), *run_dir.glob(wire.stacks_file("*")),
                *run_dir.glob(f"{wire.TENSORBOARD}/*.json")]  # fmt: skip
    sources = list(sources)
    for path in recorded:
        text = before = path.read_bytes()
        # The probe makes every file name absolute.
        text = re.sub(rb'"/[^"\n]*/(' + wire.CELL.encode() + b")", rb'"\1', text)
        for source in sources:
            if (name := _json(source.name)) not in text:
                continue
            if not source.label:
                text = text.replace(name, b"<%%tdiag>")
                continue
            file = folder / f"{source.label}.py"
            text = text.replace(name, _json(str(file)))
            if not file.exists():
                folder.mkdir(exist_ok=True)
                file.write_text(source.text, encoding="utf-8")
                os.utime(file, ns=(before_unix_ns, before_unix_ns))
        if text != before:
            path.write_bytes(text)


def _json(text: str) -> bytes:
    return json.dumps(text, ensure_ascii=False)[1:-1].encode()
