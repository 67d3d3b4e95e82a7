"""`tdiag check` and `tdiag compare` as commands: words that make no sense, and exit codes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tdiag.cli import app, check
from tdiag.cli.publish import put
from tdiag.errors import RunError, UsageError
from tdiag.gate import against
from tests.gate.building import regressed
from tests.launch.harness import script, tdiag


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["check"], "tdiag check --against REV train.py"),
        (["check", "--"], "tdiag check --against REV -- torchrun train.py"),
        (["check", "-m"], "tdiag check --against REV -m package.train"),
        (["check", "x.py"], "specify --against REV or --baseline FILE"),
        (
            ["check", "x.py", "--against", "HEAD", "--baseline", "b.json"],
            "specify --against REV or --baseline FILE",
        ),
        (["check", "x.py", "--against", "HEAD", "--update"], "--update needs the file to write"),
        (["check", "x.py", "--against", "HEAD", "--max-regression", "much"], "not a share"),
        (["check", "x.py", "--against", "HEAD", "-f", "pdf"], "no report format"),
        (["check", "x.py", "--baseline", "none.json"], "has no baseline of `x.py`"),
        (["check", "nothing.py", "--against", "HEAD"], "no such script"),
        (["compare", "a", "b"], "a is not a run directory"),
    ],
)
def test_what_makes_no_sense_is_told(words: list[str], told: str, tmp_path: Path) -> None:
    script(tmp_path, "pass", "x.py")
    done = tdiag(*words, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert told in done.stderr and "Traceback" not in done.stderr


@pytest.mark.parametrize(("text", "value"), [("5%", 0.05), ("0.05", 0.05), (" 1.5% ", 0.015)])
def test_a_share_is_read_either_way(text: str, value: float) -> None:
    assert check.share(text, "--max-regression") == value


@pytest.mark.parametrize("text", ["", "x", "-5%", "0", "5%%", "2000%"])
def test_what_is_no_share_is_told(text: str) -> None:
    with pytest.raises(UsageError, match="not a share"):
        check.share(text, "--max-regression")


def test_three_looks_at_equal_distances() -> None:
    assert [check.looks(n) for n in (15, 30, 5)] == [(5, 10, 15), (10, 20, 30), (5,)]


@pytest.mark.parametrize(("soft", "code"), [(False, 1), (True, 0)])
def test_the_exit_code_is_the_verdicts(
    soft: bool, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(against, "check_against", lambda *_: regressed())
    words = ["train.py", "--against", "HEAD", "-o", "out.json", "-f", "json", "-q"]
    monkeypatch.setattr(check.signal, "signal", lambda *_: None)
    assert app(["check", *words, *(["--soft"] if soft else [])], standalone_mode=False) == code
    assert json.loads((tmp_path / "out.json").read_text())["exit_code"] == 1


def test_in_github_actions_summary_and_annotations_come_by_themselves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path / "summary.md"))
    (tmp_path / "summary.md").write_text("of another step\n")
    put(regressed(), "terminal", None)
    shown = capsys.readouterr().out
    assert "● Regressed " in shown and "\n::error title=tdiag check" in shown
    summary = (tmp_path / "summary.md").read_text()
    assert summary.startswith("of another step\n### ❌ tdiag check: Regressed")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path / "no" / "folder"))
    with pytest.raises(RunError, match="GITHUB_STEP_SUMMARY"):
        put(regressed(), "line", None)
