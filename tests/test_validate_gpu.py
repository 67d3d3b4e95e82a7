"""The GPU validation itself, as far as that needs no device."""

from __future__ import annotations

import ast
import importlib
import json
import os
import sys
import tarfile
import threading
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
    programs, planted = module(load, "gpu.programs"), module(load, "gpu.planted")
    for one in planted.PLANTED:
        for marks in (one.fault, one.fix):
            ast.parse(planted.training(**marks))
        assert not one.line or one.line in planted.training(**one.fault)
    for change, fault, fix in planted.TRIED:
        name, _, text = change.partition("=")
        load_change(name).parse(text)
        for marks in (fault, fix, {"setup": programs.FILLS}):
            ast.parse(planted.training(**marks))
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


@pytest.mark.parametrize(
    ("first", "second", "waits"),
    [("whole", "whole", True), ("shared", "whole", True), ("shared", "shared", False),
     ("own", "whole", False)],
)  # fmt: skip
def test_what_measures_no_time_runs_beside_others_like_it(
    first: str, second: str, waits: bool, load: object, tmp_path: Path
) -> None:
    validate = module(load, "validate_gpu")
    began = threading.Event()

    def other() -> None:
        with validate._held(tmp_path / "turn", second):
            began.set()

    thread = threading.Thread(target=other)
    with validate._held(tmp_path / "turn", first):
        thread.start()
        assert began.wait(0.2 if waits else 10) is not waits
    thread.join(10)
    assert began.is_set()


def test_planted_runs_are_packed_with_what_was_true(load: object, tmp_path: Path) -> None:
    recording, planted = module(load, "gpu.recording"), module(load, "gpu.planted")
    case = next(one for one in planted.PLANTED if one.line)
    folder = tmp_path / f"3-planted-{case.code}"
    for name in ("events/7.jsonl", "tensorboard/t.json", "run.json", "report.html"):
        path = folder / "run-slow" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("{}")
    source = planted.training(**case.fault)
    (folder / "slow.py").write_text(source)
    results = [{"name": f"3 planted {case.code}", "measured": {"fixed_ns": 7.2}},
               {"name": "3 planted TD999", "measured": {}}]  # fmt: skip
    recording.pack(results, tmp_path, tmp_path / "packed")
    labels = json.loads((tmp_path / "packed" / "labels.json").read_text())
    line = next(n for n, x in enumerate(source.splitlines(), 1) if case.line in x)
    assert labels == {case.code: {"fixed_ns": 7, "cls": case.cls, "line": line}}
    with tarfile.open(tmp_path / "packed" / f"{case.code}.tar.xz") as archive:
        names = sorted(archive.getnames())
    assert names == ["run/events/7.jsonl", "run/run.json", "run/tensorboard/t.json", "slow.py"]


def test_an_assertion_that_fails_is_a_result(load: object, tmp_path: Path) -> None:
    """The case for machines without a device, in its own process, passes here."""
    words = [str(SCRIPTS / "validate_gpu.py"), "--case", "without a device", "--out", str(tmp_path)]
    done = warm.run(words, tmp_path, dict(os.environ))
    result = json.loads(done.stdout.splitlines()[-1])
    assert result == {"state": "passed", "why": "", "measured": {}}, done.stderr
    failing = module(load, "gpu.running")
    with pytest.raises(failing.Wrong):
        failing.expect(False, "no")
