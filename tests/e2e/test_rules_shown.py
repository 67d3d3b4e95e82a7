"""Rules that a CPU can show and no planted case does: a script that shows them, and a fixed twin.

Whole runs, as a user makes them; with ``pytest -m slow``, on a machine that is otherwise idle. The
other rules' scripts are the cases of ``benchmarks/accuracy.py``.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

SHOWN = Path(__file__).parents[1] / "zoo" / "shown"
# script → the rules that it shows
RULES = {
    "setup": {"TD001", "TD002", "TD003", "TD004", "TD607", "TD703"},
    "attention": {"TD608", "TD805", "TD807"},
    "compiled": {"TD005", "TD708"},
    "agent": {"TD810"},
    "startup": {"TD212"},
}
WHOLE = ("startup",)  # the start's share of a run is known at its end only


def codes(name: str, folder: Path) -> set[str]:
    """The rules that a run of the script finds something for."""
    options = [] if name.removesuffix("_fixed") in WHOLE else ["--profiling", "--time-budget", "15"]
    done = subprocess.run(
        [sys.executable, "-m", "tdiag", "run", *options, "--quiet", "--json", SHOWN / f"{name}.py"],
        cwd=folder, capture_output=True, text=True, timeout=280, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return {finding["code"] for finding in json.loads(done.stdout)["findings"]}


@pytest.mark.slow
@pytest.mark.parametrize("name", RULES)
def test_a_script_shows_its_rules_and_its_twin_does_not(name: str, tmp_path: Path) -> None:
    shown = codes(name, tmp_path)
    assert shown >= RULES[name], shown
    assert not codes(f"{name}_fixed", tmp_path) & RULES[name]
