"""Thresholds are data, and a fix begins with what to change."""

from __future__ import annotations

import ast
import importlib
import pkgutil
import runpy
from pathlib import Path
from types import ModuleType

import pytest

import tdiag.diagnose
import tdiag.rules
from tdiag.diagnose.engine import run_rule
from tdiag.model.diagnosis import Finding
from tdiag.model.threshold import Threshold
from tdiag.rules.catalogue import Rule, all_rules, find, index

ROOT = Path(__file__).resolve().parents[2]
RULES = all_rules()
# Examples make up numbers of their own.
HAVE_NONE = {"examples"}
# Sizes and limits of number types, by their definition: facts, no decisions.
FACTS = {"WIDTHS", "WHOLE"}
MODULES = [
    tdiag.diagnose,
    *(
        importlib.import_module(f"{package.__name__}.{found.name}")
        for package in (tdiag.rules, tdiag.diagnose)
        for found in pkgutil.iter_modules(package.__path__)
        if found.name not in HAVE_NONE
    ),
]
each_module = pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__)
each_rule = pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.code)


def bare_numbers(source: str) -> list[str]:
    """Names of module-level constants that hold a number outside of a ``Threshold(...)``."""
    found = []
    for node in ast.parse(source).body:
        if isinstance(node, (ast.Assign, ast.AnnAssign)) and node.value is not None:
            target = node.targets[0] if isinstance(node, ast.Assign) else node.target
            if _has_number(node.value):
                found.append(ast.unparse(target))
    return found


def _has_number(node: ast.expr) -> bool:
    if isinstance(node, ast.Call) and ast.unparse(node.func) == "Threshold":
        return False
    if isinstance(node, ast.Constant):
        return isinstance(node.value, (int, float)) and not isinstance(node.value, bool)
    return any(_has_number(x) for x in ast.iter_child_nodes(node) if isinstance(x, ast.expr))


def test_a_bare_number_is_found_wherever_it_hides() -> None:
    source = 'A = 3\nB = (Threshold(1, "", ""), 0.5)\nC: dict[str, int] = {"x": 1 << 20}\n'
    assert bare_numbers(source) == ["A", "B", "C"]
    assert bare_numbers('A = Threshold(1, "", "")\nB = ("x", True)\n') == []


@each_module
def test_every_number_of_a_module_is_a_threshold_with_a_source(module: ModuleType) -> None:
    assert module.__file__ is not None
    assert set(bare_numbers(Path(module.__file__).read_text(encoding="utf-8"))) <= FACTS
    for name, value in vars(module).items():
        if isinstance(value, Threshold):
            assert value.unit and len(value.source.split()) >= 6, name
            assert "ours" not in value.source.lower().split(), name


@each_rule
def test_a_fix_begins_with_one_line_that_says_what_to_change(rule: Rule) -> None:
    found = run_rule(rule, rule.fires())
    assert isinstance(found, Finding)
    action = found.fix.action
    assert 0 < len(action) <= 60 and action[0].isupper() and action[-1] not in ".:"
    assert ".py" not in action and "\n" not in action
    ast.parse(found.fix.code)
    assert found.fix.code == found.fix.code.strip()


def test_the_verdicts_page_lists_its_thresholds_as_they_are() -> None:
    """Run ``python scripts/generate_docs.py`` after changing one."""
    script = runpy.run_path(str(ROOT / "scripts" / "generate_docs.py"))
    assert script["VERDICT"].read_text(encoding="utf-8") == script["verdict_page"]()
    assert "HIGH_FRAC = 0.2 of the step" in script["verdict_page"]()


def test_pages_and_index_list_thresholds_as_data() -> None:
    assert find("TD601").thresholds()["FASTER_HIGH"].source.startswith("NVIDIA")
    assert all(f"`{name} = " in index() for name in ("SATURATED_FRAC", "FIXED_COST_FACTOR"))
    assert index().count("`MAJORITY_FRAC = ") == 1  # several helpers import it
