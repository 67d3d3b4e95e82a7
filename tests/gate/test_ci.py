"""What CI runs of docs/ci: the Action's own shell, and GitLab's own lines."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import yaml

from tdiag.gate import baseline

from .building import commit, git, repository
from .test_baseline import entry

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "docs" / "ci" / "example"
ACTION = yaml.safe_load((ROOT / "action.yml").read_text())
SLOW = """
def loss_of(predicted, wanted):
    total = 0.0
    for value in predicted.flatten():
        total += value.item()
    return (predicted - wanted).square().mean() + 0 * total
"""
WIDE = "--groups 5 --max-regression 100%"  # the counters are to tell, not this machine's clock


def step(number: int, inputs: Mapping[str, str], base: str = "") -> tuple[str, dict[str, str]]:
    """The shell of the Action's step and its variables, as GitHub fills them in."""
    unknown = set(inputs) - set(ACTION["inputs"])
    assert not unknown
    given = {name: str(told.get("default", "")) for name, told in ACTION["inputs"].items()}
    values = {f"inputs.{k}": v for k, v in {**given, **inputs}.items()} | {"github.base_ref": base}
    found: dict[str, Any] = ACTION["runs"]["steps"][number]
    filled = {
        name: re.sub(r"\$\{\{ (\S+) \}\}", lambda word: values[word[1]], text)
        for name, text in found["env"].items()
    }
    assert "${{" not in found["run"]
    return found["run"], filled


def act(folder: Path, inputs: Mapping[str, str], base: str = "") -> tuple[int, str, str]:
    """Exit code, verdict and all that was printed, of the checking step."""
    shell, variables = step(1, {"python": sys.executable, **inputs}, base)
    output, summary = folder.parent / "output", folder.parent / "summary.md"
    output.write_text("")
    github = {"GITHUB_OUTPUT": str(output), "GITHUB_STEP_SUMMARY": str(summary),
              "GITHUB_ACTIONS": "true", "GITHUB_WORKSPACE": str(folder)}  # fmt: skip
    done = subprocess.run(
        ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", shell], cwd=folder, text=True,
        env={**os.environ, **github, **variables}, capture_output=True, check=False,
    )  # fmt: skip
    verdict = output.read_text().strip().removeprefix("verdict=")
    return done.returncode, verdict, done.stdout + done.stderr


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """The example as CI has it: a clone, its base branch not fetched, a good commit on top."""
    origin = tmp_path / "origin"
    shutil.copytree(EXAMPLE, origin)
    repository(origin)
    git(origin, "switch", "--quiet", "--create", "change")
    commit(origin, notes="harmless")
    git(tmp_path, "clone", "--quiet", "--depth=1", "--branch=change", f"file://{origin}", "clone")
    return tmp_path / "clone"


@pytest.mark.parametrize(
    ("inputs", "base", "words"),
    [
        ({}, "main", "--against origin/main train.py --n 1"),
        ({"against": "v1; exit 9"}, "main", "--against v1; exit 9 train.py --n 1"),
        ({"baseline": "b.json", "options": "--soft --groups 6", "history": "h",
          "max-regression": "7%"}, "",
         "--baseline b.json --max-regression 7% --history h --soft --groups 6 train.py --n 1"),
    ],
)  # fmt: skip
@pytest.mark.parametrize(
    ("code", "verdict"), [(0, "pass"), (1, "regressed"), (2, "failed"), (3, "inconclusive")]
)
def test_the_action_asks_what_its_inputs_say(
    inputs: dict[str, str], base: str, words: str, code: int, verdict: str, clone: Path
) -> None:
    python = clone.parent / "python"
    python.write_text(f'#!/bin/sh\necho "asked: $*"\nexit {code}\n')
    python.chmod(0o755)
    inputs = {"script": "train.py --n 1", "python": str(python), **inputs}
    ended, told, printed = act(clone, inputs, base)
    assert (ended, told) == (0 if code == 3 else code, verdict)
    assert f"asked: -m tdiag check {words}\n" in printed
    if code == 3:
        assert act(clone, {**inputs, "inconclusive": "fail"}, base)[0] == 3


def test_the_action_fetches_the_baselines_commit(clone: Path) -> None:
    """It is not in a shallow clone; one that is gone is left to the check to tell."""
    python = clone.parent / "python"
    python.write_text('#!/bin/sh\necho "asked: $*"\n')
    python.chmod(0o755)
    good = git(clone.parent / "origin", "rev-parse", "main").strip()
    entries = {good: entry("a.py", commit=good), "gone": entry("b.py", commit="0" * 40)}
    baseline.write(clone / "b.json", entries)
    assert git(clone, "rev-list", "--all").split() != [good]
    ended, told, printed = act(
        clone, {"script": "a.py", "baseline": "b.json", "python": str(python)}
    )
    assert (ended, told) == (0, "pass") and "asked: -m tdiag check --baseline b.json" in printed
    assert git(clone, "cat-file", "-t", good).strip() == "commit"


def test_the_action_must_know_what_to_compare_with(clone: Path) -> None:
    ended, _, printed = act(clone, {"script": "train.py"})
    assert ended == 2 and "name one of the inputs" in printed


def test_the_examples_name_inputs_that_there_are() -> None:
    workflow = yaml.safe_load((EXAMPLE / ".github/workflows/step-time.yml").read_text())
    used = next(s for s in workflow["jobs"]["check"]["steps"] if "tdiag@" in s.get("uses", ""))
    assert set(used["with"]) <= set(ACTION["inputs"])
    required = {name for name, told in ACTION["inputs"].items() if told.get("required")}
    assert required <= set(used["with"])


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_good_commit_passes_and_a_regressing_one_fails(clone: Path) -> None:
    inputs = {"script": "train.py", "options": WIDE}
    ended, verdict, printed = act(clone, inputs, "main")
    assert (ended, verdict) == (0, "pass"), printed
    commit(clone, loss_py=SLOW)
    ended, verdict, printed = act(clone, inputs, "main")
    assert (ended, verdict) == (1, "regressed"), printed
    assert "loss.py:5 makes 1,024 more .item() calls a step (0 → 1,024)" in printed
    assert "::error" in printed
    assert "loss.py:5" in (clone.parent / "summary.md").read_text()


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_gitlabs_job_fails_on_the_regressing_commit(clone: Path) -> None:
    job = yaml.safe_load((EXAMPLE / ".gitlab-ci.yml").read_text())["step-time"]
    tools = clone.parent / "tools"
    tools.mkdir()
    (tools / "pip").write_text("#!/bin/sh\n")  # all is installed
    (tools / "tdiag").write_text(f'#!/bin/sh\nexec {sys.executable} -m tdiag "$@" {WIDE}\n')
    for tool in tools.iterdir():
        tool.chmod(0o755)
    commit(clone, loss_py=SLOW)
    variables = {"PATH": f"{tools}:{os.environ['PATH']}", **job["variables"],
                 "CI_MERGE_REQUEST_TARGET_BRANCH_NAME": "main"}  # fmt: skip
    done = subprocess.run(
        ["bash", "-e", "-c", "\n".join(job["script"])], cwd=clone, capture_output=True, text=True,
        env={**os.environ, **variables}, check=False,
    )  # fmt: skip
    assert done.returncode == 1, done.stderr
    report = ElementTree.parse(clone / job["artifacts"]["reports"]["junit"])
    assert report.findall(".//failure")
