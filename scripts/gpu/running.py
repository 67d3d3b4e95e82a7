"""Runs programs for the GPU cases: alone, and under tdiag."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]


class Wrong(Exception):
    """What the case asserts is not so; the text says what was expected and what was found."""


def expect(true: object, text: str) -> None:
    if not true:
        raise Wrong(text)


@dataclass
class Bench:
    """Where one case works. ``measured``: numbers for the page, filled in by the case."""

    folder: Path
    measured: dict[str, float | str]
    workplace: Path | None = None  # where programs run, if not in the folder
    environment: dict[str, str] = field(default_factory=lambda: dict(os.environ))

    def script(self, source: str, name: str = "train.py") -> Path:
        path = self.folder / name
        path.write_text(source)
        return path

    def python(self, *words: str) -> subprocess.CompletedProcess[str]:
        """The program as the user starts it."""
        return self._run([sys.executable, *words])

    def tdiag(self, *words: str) -> subprocess.CompletedProcess[str]:
        return self._run([sys.executable, "-m", "tdiag", *words])

    def diagnosis(self, script: Path, *arguments: str) -> dict[str, Any]:
        """The JSON report of a run, which ends with its windows."""
        output = self.folder / "diagnosis.json"
        run_dir = self.folder / f"run-{script.stem}"
        words = ["--quiet", "-o", str(output), "--out", str(run_dir)]
        done = self.tdiag("run", "--profiling", *words, str(script), "--", *arguments)
        expect(done.returncode == 0, f"tdiag run: exit {done.returncode}: {done.stderr[-800:]}")
        (self.folder / "stdout.txt").write_text(done.stdout)
        found: dict[str, Any] = json.loads(output.read_text())
        return found

    def residue(self) -> float:
        """By how much the last run's steps took longer after its trace, as a share."""
        files = self.folder.glob("run-*/events/*.jsonl")
        records = (json.loads(line) for file in files for line in file.read_text().splitlines())
        return next(float(r["residue"]) for r in records if r.get("residue") is not None)

    def _run(self, words: list[str]) -> subprocess.CompletedProcess[str]:
        paths = [str(ROOT), os.environ.get("PYTHONPATH"), self.environment.get("PYTHONPATH")]
        path = os.pathsep.join(dict.fromkeys(p for p in paths if p))
        return subprocess.run(
            words, cwd=self.workplace or self.folder, capture_output=True, text=True, check=False,
            env={**self.environment, "PYTHONPATH": path, "CUBLAS_WORKSPACE_CONFIG": ":4096:8"},
        )  # fmt: skip


def number(text: str, name: str) -> float:
    """The last ``<name> <number>`` that a program printed."""
    found = [line.split()[1] for line in text.splitlines() if line.startswith(f"{name} ")]
    expect(found, f"the program printed no {name}: {text[-400:]}")
    return float(found[-1])


def line_of(script: Path, text: str) -> int:
    lines = script.read_text().splitlines()
    return next(n for n, line in enumerate(lines, 1) if text in line)
