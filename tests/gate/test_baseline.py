"""The baseline file: read back, merged, refused, never half-written."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tdiag.errors import RunError
from tdiag.gate import baseline
from tdiag.gate.baseline import Entry, StoredCounter
from tdiag.gate.fingerprint import Hardware
from tdiag.launch import rundir

from .building import git, repository

MACHINE = Hardware(processor="A CPU", cores=2.0, device="cpu", torch="2.13", python="3.11")


def entry(command: str, step_ns: float = 1234567.89, commit: str = "1a" * 20) -> Entry:
    item = StoredCounter(unit="count", low=0, high=64, lines={"loss.py: forward: x.item()": 64})
    return Entry(
        command=command, commit=commit, uncommitted=[], machine=MACHINE, max_regression=0.05,
        max_growth=0.05, step_ns=step_ns, counters={".item()": item}, rules=["TD501"], tdiag="0.1",
    )  # fmt: skip


def test_what_is_written_is_read(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "baseline.json"
    baseline.write(path, {"train.py": entry("train.py")})
    found = baseline.read(path)["train.py"]
    assert found.counters == entry("train.py").counters and found.machine == MACHINE
    assert found.step_ns == 1234570.0  # six digits


def test_no_file_is_no_entry(tmp_path: Path) -> None:
    assert baseline.read(tmp_path / "none.json") == {}


def test_it_reads_in_a_diff_one_value_a_line(tmp_path: Path) -> None:
    path = tmp_path / "baseline.json"
    baseline.write(path, {"b.py": entry("b.py"), "a.py": entry("a.py")})
    first = path.read_text()
    baseline.write(path, {"a.py": entry("a.py", 3e6), "b.py": entry("b.py")})
    pairs = zip(first.splitlines(), path.read_text().splitlines(), strict=True)
    changed = [(a.strip(), b.strip()) for a, b in pairs if a != b]
    assert changed == [('"step_ns": 1234570,', '"step_ns": 3000000,')]


def test_branches_that_update_different_scripts_merge(tmp_path: Path) -> None:
    path = tmp_path / "baseline.json"
    both = {"a.py": entry("a.py"), "b.py": entry("b.py")}
    baseline.write(path, both)
    repository(tmp_path)
    git(tmp_path, "checkout", "-q", "-b", "other")
    baseline.write(path, {**both, "a.py": entry("a.py", 5e6)})
    git(tmp_path, "commit", "-qam", "a")
    git(tmp_path, "checkout", "-q", "main")
    baseline.write(path, {**both, "b.py": entry("b.py", 7e6)})
    git(tmp_path, "commit", "-qam", "b")
    git(tmp_path, "merge", "-q", "other")
    found = baseline.read(path)
    assert (found["a.py"].step_ns, found["b.py"].step_ns) == (5e6, 7e6)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ('{"tdiag_baseline": 99}', "newer tdiag"),
        ("{", "is not a baseline"),
        ('{"tdiag_baseline": 1, "scripts": {"a": {}}}', "older tdiag"),
        ('{"tdiag_baseline": 2, "scripts": {"a": {}}}', "is not a baseline"),
        ("[1]", "is not a baseline"),
        ('{"tdiag_baseline": 2,\n<<<<<<< HEAD\n', "merge conflict"),
        ("\udcff", "is not a baseline"),
    ],
)
def test_what_cannot_be_read_is_told(text: str, told: str, tmp_path: Path) -> None:
    path = tmp_path / "baseline.json"
    path.write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(RunError, match=told) as caught:
        baseline.read(path)
    assert caught.value.exit_code == 2 and caught.value.hint


def test_a_crash_while_writing_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "baseline.json"
    baseline.write(path, {"a.py": entry("a.py")})

    def crash(self: Path, *_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(rundir.Path, "write_text", crash)
    with pytest.raises(RunError, match="cannot write"):
        baseline.write(path, {"b.py": entry("b.py")})
    monkeypatch.undo()
    assert list(baseline.read(path)) == ["a.py"]
    assert [p.name for p in tmp_path.iterdir()] == ["baseline.json"]


def test_it_holds_no_number_that_json_cannot(tmp_path: Path) -> None:
    path = tmp_path / "baseline.json"
    baseline.write(path, {"a.py": entry("a.py")})
    assert json.loads(path.read_text())["tdiag_baseline"] == baseline.VERSION


def test_another_torch_is_no_other_machine() -> None:
    other = Hardware(processor="A CPU", cores=2.0, device="cpu", torch="2.1", python="3.12")
    assert MACHINE.same_hardware(other)
    assert not MACHINE.same_hardware(
        Hardware(processor="A CPU", cores=4.0, device="cpu", torch="2.13", python="3.11")
    )
