"""Each sample script gets the verdict that its head promises, and its fixed twin does not.

Whole runs of `tdiag run --profiling`, as a user makes them. The clearest one with
``pytest -m training``, all of them with ``pytest -m slow``, on a machine that is otherwise idle.
"""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
SAMPLES = ROOT / "sample_scripts"

# script → (verdict class, function that the first finding points into; "" = anywhere)
SLOW = {
    "python_loss": ("python_loss", "instance_loss"),
    "cpu_decode": ("cpu", ""),
    "io_reads": ("io", ""),
    "overhead": ("overhead", ""),
    "debugging": ("overhead", "main"),
    "compute": ("compute", ""),
}
CLEAREST = ("python_loss",)
# Less of the same: a faster computation computes, and a step of a millisecond is fixed costs.
STAYS = ("compute", "overhead")


def diagnose(name: str, folder: Path, *options: str) -> dict[str, Any]:
    """The diagnosis of one sample; its data are made in ``folder``."""
    done = subprocess.run(
        [sys.executable, "-m", "tdiag", "run", str(SAMPLES / f"{name}.py"), "--profiling",
         "--quiet", "--json", *options, *_data(name, folder)],
        cwd=folder, capture_output=True, text=True, timeout=280,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def _data(name: str, folder: Path) -> list[str]:
    source = (SAMPLES / f"{name}.py").read_text()
    return ["--", "--data", str(folder / "data")] if '"--data"' in source else []


def lines_of(name: str, function: str) -> range:
    tree = ast.parse((SAMPLES / f"{name}.py").read_text())
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and node.name == function:
            return range(node.lineno, (node.end_lineno or node.lineno) + 1)
    raise AssertionError(function)


def findings(diagnosis: dict[str, Any]) -> list[dict[str, Any]]:
    return [f for f in diagnosis["findings"] if not f["advisory"]]


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(n, marks=pytest.mark.training if n in CLEAREST else pytest.mark.slow)
        for n in SLOW
    ],
)
def test_a_slow_sample_gets_the_verdict_its_head_promises(name: str, tmp_path: Path) -> None:
    expected, function = SLOW[name]
    # In a third of the default time each window has had its first turn.
    options = ["--time-budget", "20"] if name in CLEAREST else []
    diagnosis = diagnose(name, tmp_path, *options)
    assert diagnosis["verdict"]["class"] == expected, diagnosis["verdict"]
    assert sum(part["ns"] for part in diagnosis["budget"]) == diagnosis["step"]["mean_ns"]
    if function:
        first = findings(diagnosis)[0]
        assert Path(first["location"]["file"]).name == f"{name}.py"
        assert first["location"]["line"] in lines_of(name, function)


@pytest.mark.slow
@pytest.mark.parametrize("name", SLOW)
def test_its_fixed_twin_is_cured_of_it(name: str, tmp_path: Path) -> None:
    expected, _ = SLOW[name]
    slow = diagnose(name, tmp_path)
    fixed = diagnose(f"{name}_fixed", tmp_path)
    assert fixed["step"]["mean_ns"] < slow["step"]["mean_ns"]
    cured = findings(slow)[0]["code"] if findings(slow) else ""
    assert cured not in [f["code"] for f in findings(fixed)]
    if expected not in STAYS:
        assert fixed["verdict"]["class"] != expected


@pytest.mark.slow
def test_the_healthy_one_is_called_healthy_and_nothing_is_pushed(tmp_path: Path) -> None:
    diagnosis = diagnose("healthy", tmp_path)
    assert diagnosis["verdict"]["class"] == "compute"
    assert diagnosis["verdict"]["healthy"]
    assert findings(diagnosis) == []
