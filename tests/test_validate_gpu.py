"""The GPU validation itself, as far as that needs no device."""

from __future__ import annotations

import ast
import importlib
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tdiag.probe.trial.changes import load as load_change
from tests import warm

ROOT = Path(__file__).parents[1]
SCRIPTS = ROOT / "scripts"


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch) -> Iterator[object]:
    monkeypatch.syspath_prepend(str(SCRIPTS))
    yield importlib.import_module
    for name in [n for n in sys.modules if n.split(".")[0] in ("gpu", "validate_gpu")]:
        del sys.modules[name]


def module(load: object, name: str) -> ModuleType:
    found = load(name)  # type: ignore[operator]
    assert isinstance(found, ModuleType)
    return found


def test_every_program_is_python(load: object) -> None:
    programs = module(load, "gpu.programs")
    for one in programs.PLANTED:
        for marks in (one.fault, one.fix):
            ast.parse(programs.training(**marks))
        assert not one.line or one.line in programs.training(**one.fault)
    for change, fault, fix in programs.TRIED:
        name, _, text = change.partition("=")
        load_change(name).parse(text)
        for marks in (fault, fix, {"setup": programs.FILLS}):
            ast.parse(programs.training(**marks))
    for source in (programs.TRUTH, programs.EVENTS, *programs.WAYS.values()):
        ast.parse(source + programs.DIGEST)


def test_each_set_of_the_validation_has_cases_and_names_are_unique(load: object) -> None:
    cases = module(load, "gpu.cases").CASES
    names = [case.name for case in cases]
    assert len(set(names)) == len(names)
    assert {name[0] for name in names if name[0].isdigit()} == set("123456789")
    assert names[0].startswith("1 truth")
    order = [case.name[0] for case in cases if case.name[0].isdigit()]
    assert order == sorted(order)


def test_results_are_kept_at_once_and_not_made_again(
    load: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    validate, cases = module(load, "validate_gpu"), module(load, "gpu.cases")
    runs: list[str] = []

    def run(case: Any, out: Path, ends: float, seconds: float) -> dict[str, object]:
        name = case.name
        runs.append(name)
        if name == "second":
            raise KeyboardInterrupt  # as a machine that is taken away
        state = "failed" if name == "third" else "passed"
        return {"name": name, "state": state, "why": "", "measured": {"ns": 1.5}, "seconds": 1,
                "machine": "a device"}  # fmt: skip

    three = tuple(cases.Case(name, lambda bench: None) for name in ("first", "second", "third"))
    monkeypatch.setattr(cases, "CASES", three)
    monkeypatch.setattr(validate, "_run", run)
    monkeypatch.setattr(sys, "argv", ["validate_gpu.py", "--out", str(tmp_path)])
    with pytest.raises(KeyboardInterrupt):
        validate.main()
    known = (tmp_path / "results.jsonl").read_text().splitlines()
    assert "first" in [json.loads(line)["name"] for line in known]
    runs.clear()
    monkeypatch.setattr(cases, "CASES", (three[0], three[2]))
    assert validate.main() == 1
    assert "first" not in runs
    assert "1 of 2 cases passed, 1 failed, 0 have not run" in (tmp_path / "results.md").read_text()


def test_a_slice_begins_no_case_when_too_little_is_left(
    load: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    validate, cases = module(load, "validate_gpu"), module(load, "gpu.cases")
    monkeypatch.setattr(cases, "CASES", (cases.Case("long", lambda bench: None),))
    slice_ = str((validate.LEAST_S - 1) / 60)
    words = ["validate_gpu.py", "--out", str(tmp_path), "--slice-minutes", slice_]
    monkeypatch.setattr(sys, "argv", words)
    assert validate.main() == 0
    assert not (tmp_path / "results.jsonl").exists()


def test_what_the_slice_ends_has_no_result(
    load: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It runs again in the next call; a case that took too long by its own limit has failed."""
    validate, cases = module(load, "validate_gpu"), module(load, "gpu.cases")
    monkeypatch.setattr(validate, "LEAST_S", 0)
    case, now = cases.Case("without a device", lambda bench: None), validate.time.monotonic()
    assert validate._run(case, tmp_path, ends=now + 60, seconds=0.1)["state"] == "failed"
    assert validate._run(case, tmp_path, ends=validate.time.monotonic() + 0.1, seconds=60) is None


def test_an_assertion_that_fails_is_a_result(load: object, tmp_path: Path) -> None:
    """The case for machines without a device, in its own process, passes here."""
    words = [str(SCRIPTS / "validate_gpu.py"), "--case", "without a device", "--out", str(tmp_path)]
    done = warm.run(words, tmp_path, dict(os.environ))
    result = json.loads(done.stdout.splitlines()[-1])
    assert result == {"state": "passed", "why": "", "measured": {}}, done.stderr
    failing = module(load, "gpu.running")
    with pytest.raises(failing.Wrong):
        failing.expect(False, "no")
