"""The commands themselves: cheap help, and a doctor that tries what it tells."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.launch.harness import script, tdiag

HEAVY = ("torch", "numpy", "psutil", "msgspec", "rich.console", "asyncio", "tdiag.launch.session")


@pytest.mark.parametrize("words", [["--help"], ["run", "--help"], ["report", "--help"]])
def test_help_imports_nothing_heavy(words: list[str]) -> None:
    program = f"""
import sys
from tdiag.cli import app
try:
    app({words!r}, prog_name="tdiag")
except SystemExit:
    pass
print([m for m in {HEAVY!r} if m in sys.modules], file=sys.stderr)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert "Usage: tdiag" in done.stdout
    assert done.stderr == "[]\n"


def test_no_command_imports_torch(tmp_path: Path) -> None:
    program = """
import sys
from tdiag.cli import app
for words in (["run", "x.py"], ["report"], ["doctor"], ["try", "--list"]):
    app(words, standalone_mode=False)
print("torch" in sys.modules, "numpy" in sys.modules, file=sys.stderr)
"""
    script(tmp_path, "pass", "x.py")
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True,
                          text=True)  # fmt: skip
    assert done.stderr.splitlines()[-1] == "False True"


def test_doctor_tries_and_tells(tmp_path: Path) -> None:
    done = tdiag("doctor", cwd=tmp_path)
    assert done.returncode == 0
    for name in ("torch", "run directory", "py-spy attach", "cores allowed", "memory"):
        assert f"\n{name}" in f"\n{done.stdout}"
    assert not list(tmp_path.iterdir())


def test_doctor_fails_where_nothing_can_work(tmp_path: Path) -> None:
    bare = tmp_path / "barepython"
    bare.write_text(f'#!/bin/sh\nexec {sys.executable} -I -S "$@"\n')
    bare.chmod(0o755)
    done = tdiag("doctor", "--python", str(bare), cwd=tmp_path)
    assert done.returncode == 1
    assert "no training can run here" in done.stdout


def test_explain_prints_the_rules_own_page(tmp_path: Path) -> None:
    from tdiag.rules.catalogue import explain

    shown = tdiag("explain", "loader-short-of-workers", cwd=tmp_path)
    assert shown.returncode == 0
    assert shown.stdout == explain("TD201")
    unknown = tdiag("explain", "TD999", cwd=tmp_path)
    assert unknown.returncode == 2
    assert "no rule is called 'TD999'" in unknown.stderr


def test_explain_finds_rules_by_what_they_speak_of(tmp_path: Path) -> None:
    found = tdiag("explain", "pin_memory", cwd=tmp_path).stdout
    assert "- TD301 pageable-copies: " in found
    assert "TD801" not in found
    every = tdiag("explain", cwd=tmp_path).stdout
    assert "loader-short-of-workers" in every and "pageable-copies" in every


def test_doctor_and_rules_speak_to_programs(tmp_path: Path) -> None:
    from tdiag.rules.catalogue import all_rules

    checks = json.loads(tdiag("doctor", "--json", cwd=tmp_path).stdout)
    assert {"torch", "py-spy attach", "memory"} <= {check["name"] for check in checks}
    assert next(check for check in checks if check["name"] == "torch")["ok"] is True
    table = json.loads(tdiag("rules", "--json", cwd=tmp_path).stdout)
    assert [row["code"] for row in table] == [rule.code for rule in all_rules()]
    row = next(row for row in table if row["code"] == "TD201")
    assert row["proven_by"] == "loader.num_workers" and "Loaders" in row["needs"]


def test_rules_lists_every_rule_with_its_needs(tmp_path: Path) -> None:
    from tdiag.rules.catalogue import all_rules

    shown = tdiag("rules", cwd=tmp_path).stdout.splitlines()[1:]
    assert [line.split()[0] for line in shown] == [rule.code for rule in all_rules()]
    assert any("Budget, Loaders, System" in line for line in shown)
    assert any(line.split()[0] == "TD201" and " loader.num_workers " in line for line in shown)
