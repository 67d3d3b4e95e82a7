"""``[tool.tdiag]`` in pyproject.toml."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from tdiag.cli import app
from tdiag.errors import UsageError


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    below = tmp_path / "src" / "deep"
    below.mkdir(parents=True)
    monkeypatch.chdir(below)
    return tmp_path


def shown(*words: str) -> str:
    return " ".join(CliRunner().invoke(app, words, catch_exceptions=False).output.split())


def test_a_file_above_sets_defaults_and_its_paths_are_relative_to_it(folder: Path) -> None:
    (folder / "pyproject.toml").write_text(
        "[tool.tdiag.run]\ntime-budget = 30\n[tool.tdiag.history]\nhtml = true\n"
        '[tool.tdiag.check]\nbaseline = "base.json"\n'
    )
    assert "[default: 30;" in shown("run", "--help")
    assert str(folder / "base.json") in shown("check", "--help").replace(" ", "")


def test_the_command_line_wins(folder: Path) -> None:
    (folder / "pyproject.toml").write_text('[tool.tdiag.check]\nbaseline = "base.json"\n')
    with pytest.raises(UsageError, match=r"base\.json has no baseline"):
        shown("check", "train.py")
    with pytest.raises(UsageError, match=r"elsewhere\.json"):
        shown("check", "train.py", "--baseline", "elsewhere.json")
    Path("train.py").touch()
    with pytest.raises(UsageError, match="git"):
        shown("check", "train.py", "--against", "HEAD")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[tool.tdiag.run]\ntime_budget = 3\n", r"\[tool\.tdiag\.run\] has no time_budget"),
        ("[tool.tdiag.ran]\nquiet = true\n", r"\[tool\.tdiag\] has no ran"),
        ("[tool.tdiag]\nrun = 3\n", r"tool\.tdiag\.run is not a table"),
        ("[tool.tdiag.run]\ntime-budget =\n", r"cannot read .*pyproject\.toml"),
    ],
)
def test_what_is_not_there_is_one_message_naming_the_file(
    folder: Path, text: str, message: str
) -> None:
    (folder / "pyproject.toml").write_text(text)
    with pytest.raises(UsageError, match=message):
        shown("rules")


def test_dotted_keys_are_the_same_table(folder: Path) -> None:
    (folder / "pyproject.toml").write_text("[tool]\ntdiag.run.time-budget = 30\n")
    assert "[default: 30;" in shown("run", "--help")


def test_another_projects_broken_file_is_not_read(folder: Path) -> None:
    (folder / "pyproject.toml").write_text("[tool.other\n")
    assert "TD201" in shown("rules")
