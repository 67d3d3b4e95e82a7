"""A threshold that was measured names the benchmark that measures it again."""

from __future__ import annotations

import importlib
import pkgutil
import re
from pathlib import Path
from types import ModuleType

import pytest

import tdiag.diagnose
import tdiag.evidence
import tdiag.launch
import tdiag.rules
from tdiag.model.threshold import Threshold

ROOT = Path(__file__).resolve().parents[2]
CONSTANTS = "benchmarks/rule_constants.py"
# Where a source says so; "not measured" is none of it.
MEASURED = re.compile(r"\b(Measured|Simulated|Interleaved)\b|[Tt]he (same )?measurement")
FILE = re.compile(r"benchmarks/[\w/]+(?:\.py)?")


def thresholds() -> dict[str, Threshold]:
    """`module.CONSTANT` → threshold, of all stages; imported ones once, where they are made."""
    found: dict[int, tuple[str, Threshold]] = {}
    for package in (tdiag.launch, tdiag.evidence, tdiag.rules, tdiag.diagnose):
        modules = pkgutil.walk_packages(package.__path__, f"{package.__name__}.")
        for module in sorted(modules, key=lambda module: "threshold" not in module.name):
            if not module.name.endswith(("calibrate", "__main__")):  # a program of its own
                for name, value in vars(importlib.import_module(module.name)).items():
                    if isinstance(value, Threshold) and id(value) not in found:
                        found[id(value)] = f"{module.name.rpartition('.')[2]}.{name}", value
    return dict(found.values())


@pytest.fixture
def benchmark(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    return importlib.import_module("rule_constants")


def faults(name: str, source: str, benchmark: ModuleType) -> list[str]:
    """What is wrong with where this one says that it was measured."""
    files = FILE.findall(source)
    if MEASURED.search(source) and not files:
        return [f"{name} names no benchmark"]
    wrong = [
        f"{name} names {file}, which does not exist" for file in files if not (ROOT / file).exists()
    ]
    asked = re.findall(rf"{re.escape(CONSTANTS)} ([\w.]*\w)", source)
    if CONSTANTS in files and name not in {one for part in asked for one in benchmark.known(part)}:
        wrong.append(f"{name}: {CONSTANTS} {' '.join(asked)} does not measure it")
    return wrong


def test_a_measured_threshold_names_a_benchmark_that_measures_it(benchmark: ModuleType) -> None:
    found = thresholds()
    assert len(found) > 150
    assert [
        fault for name, one in found.items() for fault in faults(name, one.source, benchmark)
    ] == []


def test_faults_are_found(benchmark: ModuleType) -> None:
    name = "td705_gradients_clipped_one_by_one.FOREACH_WINS"
    assert faults(name, f"Measured on one core ({CONSTANTS} td705).", benchmark) == []
    assert faults(name, "Heuristic: a fifth; not measured.", benchmark) == []
    for wrong in (
        "Measured on one core, torch 2.13.",
        "The same measurement: 4.2 times at most.",
        "Measured on one core (benchmarks/gone.py).",
        f"Measured on one core ({CONSTANTS} td702).",
        f"Measured on one core ({CONSTANTS} td799).",
        f"Measured on one core ({CONSTANTS}).",
    ):
        assert len(faults(name, wrong, benchmark)) == 1, wrong


def test_what_the_benchmark_measures_is_in_use(benchmark: ModuleType) -> None:
    for name in benchmark.load():
        assert CONSTANTS in benchmark.threshold(name).source, name


def test_what_was_measured_agrees_covers_or_differs(benchmark: ModuleType) -> None:
    figures = {"small": 2.0, "middle": 4.0, "large": 8.0}
    judged = benchmark.verdict
    assert judged(2.1, figures, "least") == judged(7.0, figures, "most") == "agrees"
    assert judged(1.0, figures, "least") == judged(12.0, figures, "most") == "covers"
    assert judged(3.0, figures, "least") == judged(5.0, figures, "most") == "differs"
    assert judged(7.9, figures, "median") == judged(3.0, figures, "between") == "agrees"
    assert judged(8.9, figures, "median") == judged(8.9, figures, "between") == "differs"
