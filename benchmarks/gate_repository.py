"""A repository with one of ``gate_programs.py`` in it, and whole checks of it with a baseline."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

PROGRAMS = Path(__file__).with_name("gate_programs.py")
# Read and not imported: nothing that starts checks needs torch.
NAMES = re.findall(r'^    "(.+?)": lambda', PROGRAMS.read_text(), re.MULTILINE)


class Repository:
    """One of ``gate_programs.py`` alone, with a baseline of what is asked for."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.written = folder, set[str]()
        shutil.copy(PROGRAMS, folder / "train.py")
        (folder / ".gitignore").write_text("*.json\n.tdiag\n")
        identity = ("-c", "user.name=A", "-c", "user.email=a@b")
        for words in (["init", "--quiet"], ["add", "--all"], [*identity, "commit", "-qm", "it"]):
            subprocess.run(["git", *words], cwd=folder, check=True)

    def write(self, program: str) -> None:
        if program not in self.written:
            done = self._tdiag(program, "--update")
            assert done.returncode == 0 and "checks will run commit" in done.stderr, done.stderr
            self.written.add(program)

    def check(self, program: str, effect: float = 0.0, *options: str) -> dict[str, Any]:
        """The answer and what else a check said of the step's time."""
        source = PROGRAMS.read_text()
        slower = source.replace("UNITS = 100 ", f"UNITS = {round(100 + effect)} ")
        assert (slower != source) == bool(effect)
        (self.folder / "train.py").write_text(slower)
        done = self._tdiag(program, "--format", "json", *options)
        shutil.rmtree(self.folder / ".tdiag", ignore_errors=True)
        assert done.returncode in (0, 1, 3), done.stderr
        outcome = json.loads(done.stdout)
        step = outcome["step"]
        assert step is not None, outcome["why_no_step"]
        return {
            "verdict": outcome["verdict"],
            "answer": step["answer"],
            "estimate": [step["ratio"], step["low"], step["high"]],
            "mean": [step["mean_ratio"], step["mean_low"], step["mean_high"]],
            "step_ms": step["before_ns"] / 1e6,
            "groups": step["groups"],
            "reasons": outcome["reasons"],
        }

    def _tdiag(self, program: str, *options: str) -> subprocess.CompletedProcess[str]:
        words = [sys.executable, "-m", "tdiag", "check", "--baseline", "baseline.json", *options]
        return subprocess.run([*words, "train.py", program], cwd=self.folder, text=True,
                              capture_output=True, check=False)  # fmt: skip
