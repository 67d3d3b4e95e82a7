"""Which words are tdiag's, which are the script's."""

from __future__ import annotations

from pathlib import Path

import pytest

from tdiag.errors import UsageError
from tdiag.launch.target import Target, declared_options, split

OWN = {"--profiling": False, "--steps": True, "--python": True, "-o": True, "--help": False}

COMMAND_LINES = {
    "train.py": ([], "script", "train.py", []),
    "train.py --profiling": (["--profiling"], "script", "train.py", []),
    "train.py --profiling --epochs 2": (["--profiling"], "script", "train.py", ["--epochs", "2"]),
    "train.py --profiling -- --epochs 2": (
        ["--profiling"], "script", "train.py", ["--epochs", "2"],
    ),
    "--steps 9 train.py a --lr=3": (["--steps", "9"], "script", "train.py", ["a", "--lr=3"]),
    "train.py --steps=9 -foo 1": (["--steps=9"], "script", "train.py", ["-foo", "1"]),
    "train.py -- --profiling": ([], "script", "train.py", ["--profiling"]),
    "train.py -- -- x": ([], "script", "train.py", ["--", "x"]),
    "-m pkg.train --profiling -x": (["--profiling"], "module", "pkg.train", ["-x"]),
    "--profiling -- torchrun --nproc-per-node 2 t.py --profiling": (
        ["--profiling"], "launcher", "torchrun", ["--nproc-per-node", "2", "t.py", "--profiling"],
    ),
    "--profiling -- train.py --steps 9": (["--profiling"], "script", "train.py", ["--steps", "9"]),
    "--profiling -- -m pkg.train -x": (["--profiling"], "module", "pkg.train", ["-x"]),
    "-- /bin/sh run.sh": ([], "launcher", "/bin/sh", ["run.sh"]),
    "train.py --help": ([], "script", "train.py", ["--help"]),
    "--profiling --help": (["--profiling", "--help"], "script", "", []),
    "--wrong train.py": (["--wrong"], "script", "train.py", []),
}  # fmt: skip


@pytest.mark.parametrize("line", COMMAND_LINES)
def test_words_go_to_whom_they_belong(line: str) -> None:
    mine, kind, name, args = COMMAND_LINES[line]
    assert split(line.split(), OWN) == (mine, Target(kind, name, tuple(args)))


@pytest.mark.parametrize("line", ["", "--profiling", "-m", "--", "--profiling --"])
def test_nothing_to_run_is_said(line: str) -> None:
    with pytest.raises(UsageError):
        split(line.split(), OWN)


@pytest.mark.parametrize("line", ["train.py --profiling", "--profiling train.py"])
@pytest.mark.parametrize("declares", [True, False])
def test_profiling_is_handed_to_a_script_that_declares_it(
    line: str, declares: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text(f"p.add_argument('--{'profiling' if declares else 'prof'}')\n")
    mine, target = split(line.split(), OWN)
    assert mine == ["--profiling"]
    assert target.args == (("--profiling",) if declares else ())


def test_profiling_keeps_its_place_among_the_scripts_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text("sub.add_argument('--profiling')\n")
    args = split(["train.py", "fit", "--profiling", "3"], OWN)[1].args
    assert args == ("fit", "--profiling", "3")


def test_an_option_that_the_script_declares_is_its_own_after_it_and_ours_before_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text("p.add_argument('--steps', type=int)\n")
    mine, target = split(["--steps", "5", "train.py", "--steps", "100"], OWN)
    assert (mine, target.args) == (["--steps", "5"], ("--steps", "100"))


def test_options_of_a_module_are_found_in_the_current_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pkg" / "train").mkdir(parents=True)
    (tmp_path / "pkg" / "train" / "__main__.py").write_text("'--profiling'\n")
    assert split(["-m", "pkg.train", "--profiling"], OWN)[1].args == ("--profiling",)


def test_a_source_that_cannot_be_parsed_declares_nothing(tmp_path: Path) -> None:
    broken = tmp_path / "broken.py"
    broken.write_text("'--profiling' (\n")
    assert declared_options(broken) == frozenset()
    assert declared_options(tmp_path / "missing.py") == frozenset()


def test_commands_and_labels() -> None:
    assert Target("script", "a/train.py", ("x",)).command("py") == ["py", "a/train.py", "x"]
    assert Target("module", "p.train").command("py") == ["py", "-m", "p.train"]
    launcher = Target("launcher", "torchrun", ("--n", "2", "a/fit.py"))
    assert launcher.command("py") == ["torchrun", "--n", "2", "a/fit.py"]
    assert launcher.label() == "fit"
    assert launcher.script() == "a/fit.py"
    assert Target("launcher", "./go.sh").label() == "go"
    assert Target("module", "p.train").label() == "p.train"


def test_a_parser_in_a_module_beside_the_script_counts(tmp_path: Path) -> None:
    (tmp_path / "options.py").write_text("parser.add_argument('--steps')\n")
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__init__.py").write_text("")
    (tmp_path / "package" / "cli.py").write_text("from ..deeper import more\nx = '--out'\n")
    (tmp_path / "deeper.py").write_text("x = '--quiet'\n")
    script = tmp_path / "train.py"
    script.write_text("import torch, options\nfrom package import cli\n")
    assert declared_options(script) == {"--steps", "--out", "--quiet"}


def test_a_python_file_that_can_be_executed_is_a_launcher(tmp_path: Path) -> None:
    """It may name another interpreter in its first line."""
    script = tmp_path / "train.py"
    script.write_text("#!/usr/bin/env python3\n")
    assert split(["--", str(script)], OWN)[1].kind == "script"
    script.chmod(0o700)
    assert split(["--", str(script)], OWN)[1].kind == "launcher"
