"""Runs a program under the probe alone (no launcher beside it) and reads what it wrote."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from tdiag.evidence.from_run import load_run
from tdiag.evidence.from_run.records import StepsRecord
from tdiag.evidence.from_run.slices import StepTable, step_table
from tdiag.evidence.store import Evidence
from tests import warm

INJECT = Path(__file__).parents[2] / "tdiag" / "probe" / "inject"
SHORT = Path(__file__).parent / "short"  # a sitecustomize that shortens the plan's windows
WINDOWS = ["baseline", "sample", "trace", "calls", "ops"]


@dataclass
class Watched:
    """``processes``: the records of each process, oldest first by file name."""

    returncode: int
    out: str
    err: str
    run_dir: Path
    processes: list[list[dict[str, Any]]] = field(default_factory=list)

    def training(self) -> list[list[dict[str, Any]]]:
        """The processes that trained at least one step."""
        return [
            records
            for records in self.processes
            if any(r["kind"] == "role" and r["role"] == "training" for r in records)
        ]

    def of(self, kind: str) -> list[dict[str, Any]]:
        """All records of one kind, of all processes."""
        return [r for records in self.processes for r in records if r["kind"] == kind]

    def steps(self) -> list[dict[str, Any]]:
        """The steps of the first training process since its last ``boundary`` record."""
        records = self.training()[0]
        last = max(i for i, r in enumerate(records) if r["kind"] == "boundary")
        rows = [r for r in records[last:] if r["kind"] == "steps"]
        table = step_table([msgspec.convert(row, StepsRecord) for row in rows])
        columns = (table.number, table.begin, table.end, table.window)
        return [
            {"i": i, "s": s, "t": t, "w": w, "m": _marks(table, row)}
            for row, (i, s, t, w) in enumerate(zip(*(c.tolist() for c in columns), strict=True))
        ]

    def evidence(self) -> Evidence:
        """What tdiag makes of it."""
        run = {"schema": 1, "command": ["python", "script.py"], "script": "script.py"}
        (self.run_dir / "run.json").write_text(json.dumps(run))
        return load_run(self.run_dir)

    def windows(self, state: str = "end") -> list[str]:
        """Names with pass ("trace1") of the windows that reached ``state``."""
        return [f"{r['name']}{r['pass']}" for r in self.of("window") if r["state"] == state]


def _marks(table: StepTable, row: int) -> list[int]:
    """Flat fours: code, wall ns since the step began, on-CPU ns, argument."""
    mine = table.step == row
    columns = table.code[mine], table.at[mine] - table.begin[row], table.cpu[mine], table.arg[mine]
    marks: list[int] = np.column_stack(columns).ravel().tolist()
    return marks


def environment(run_dir: Path, base: dict[str, str], **config: Any) -> dict[str, str]:
    """``base`` with the probe in it, and a run directory made for it."""
    for name in ("events", "control"):
        (run_dir / name).mkdir(parents=True)
    told = {
        "profiling": False,
        "steps": None,
        "time_budget_s": 60.0,
        "windows": WINDOWS,
        "sampler": "in-process",
        "sampler_hint": "",
        **config,
    }
    (run_dir / "config.json").write_text(json.dumps(told))
    path = os.pathsep.join(p for p in (str(INJECT), base.get("PYTHONPATH", "")) if p)
    return {**base, "TDIAG_RUN": str(run_dir), "PYTHONPATH": path}


def read(run_dir: Path) -> list[list[dict[str, Any]]]:
    return [
        [json.loads(line) for line in file.read_text().splitlines()]
        for file in sorted((run_dir / "events").glob("*.jsonl"))
    ]


def watch_code(
    tmp_path: Path,
    code: str,
    *args: str,
    cold: bool = False,
    short: bool = False,
    few: bool = False,
    **config: Any,
) -> Watched:
    """Run source text as a script under the probe, in a Python that has imported torch already
    (``tests/warm.py``) or, ``cold``, from the start. ``short``, and with it ``few`` steps: see
    ``short/sitecustomize.py``."""
    script = tmp_path / "script.py"
    script.write_text(code)
    run_dir = tmp_path / "run"
    base = {**os.environ, "OMP_NUM_THREADS": "1"}
    base.pop("PYTHONPATH", None)
    if short:
        base["PYTHONPATH"] = str(SHORT)
        base |= {"TDIAG_TEST_FEW": "1"} if few else {}
    words, environ = [str(script), *args], environment(run_dir, base, **config)
    if cold:
        done = subprocess.run(
            [sys.executable, *words], env=environ, cwd=tmp_path, capture_output=True, text=True,
            timeout=120,
        )  # fmt: skip
    else:
        done = warm.run(words, tmp_path, environ)
    return Watched(done.returncode, done.stdout, done.stderr, run_dir, read(run_dir))
