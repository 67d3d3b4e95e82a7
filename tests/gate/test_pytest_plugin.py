"""The fixture ``tdiag_step_gate``, in a pytest of its own."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tdiag import pytest_plugin
from tdiag.children import program
from tdiag.duel.side import Program
from tdiag.gate.counters import counters
from tdiag.gate.counting import count

pytest_plugins = ["pytester"]

GATED = """
def test_step(tdiag_step_gate):
    calls = []
    def step():
        calls.append(1)
        if len(calls) == 3:
            raise SystemExit(0)
    tdiag_step_gate(step, "--groups", "5")
    print("after", len(calls))
"""
TRAINING = """
import torch

def test_step(tdiag_step_gate):
    model = torch.nn.Linear(8, 8)

    def step():
        model.zero_grad()
        loss = model(torch.ones(2, 8)).sum()
        loss.backward()
        with torch.no_grad():  # by hand: an optimizer imports what takes longer than torch itself
            for weight in model.parameters():
                weight -= 0.1 * weight.grad
        loss.item()

    tdiag_step_gate(step)
"""


def test_importing_it_is_cheap() -> None:
    heavy = "{'torch', 'typer', 'rich', 'numpy', 'msgspec', 'tdiag.cli', 'tdiag.gate'}"
    code = f"import sys, tdiag.pytest_plugin; sys.exit(bool({heavy} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize(
    ("code", "result", "said"),
    [
        (0, {"passed": 1}, "after 0"),
        (1, {"failed": 1}, "the step regressed"),
        (2, {"failed": 1}, "tdiag check gave no result"),
        (3, {"skipped": 1}, "inconclusive: it is"),
    ],
)
def test_the_verdict_is_the_tests(
    code: int, result: dict[str, int], said: str, pytester: pytest.Pytester,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """The step is never called in the process of the test."""
    script = f"import sys; print('it is ' + sys.argv[1]); sys.exit({code})"
    told = [sys.executable, "-c", script, "told"]
    monkeypatch.setattr(pytest_plugin, "command", lambda config, node, options: told)
    pytester.makepyfile(GATED)
    ran = pytester.runpytest_inprocess("-rA")
    ran.assert_outcomes(**result)
    ran.stdout.fnmatch_lines([f"*{said}*"])
    ran.stdout.fnmatch_lines(["*it is told*"])


def test_what_the_check_is_asked(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[list[str]] = []
    own = pytest_plugin.command

    def command(config: pytest.Config, node: str, options: tuple[str, ...]) -> list[str]:
        asked.append(own(config, node, options))
        return [sys.executable, "-c", ""]

    monkeypatch.setattr(pytest_plugin, "command", command)
    pytester.makeini("[pytest]\ntdiag_baseline = speed/b.json\n")
    pytester.makepyfile(test_it=GATED)
    pytester.runpytest_inprocess("--tdiag-update").assert_outcomes(passed=1)
    *_, run = program("tdiag")
    assert asked[0][2].split(";")[-1] == run.split(";")[-1], "pytest adds folders to the path"
    assert " ".join(asked[0][3:]).startswith(
        "check --quiet --baseline speed/b.json --groups 5 --update -m pytest"
        " test_it.py::test_step --capture=no --override-ini=addopts="
    )


def test_the_repeated_step_ends_when_tdiag_says_so(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(pytest_plugin.REPEAT, "1")
    pytester.makepyfile(GATED)
    ran = pytester.runpytest_inprocess()
    assert ran.ret == 0
    ran.stdout.fnmatch_lines(["*tdiag has seen enough*"])


# Only here is tdiag imported long before pytest looks for its plugins.
INI = """
[pytest]
addopts = --no-such-option
filterwarnings =
    error
    ignore:Module already imported:pytest.PytestAssertRewriteWarning
"""


def test_the_gate_counts_what_the_step_does(pytester: pytest.Pytester) -> None:
    """A real one, with options of pytest that would be in the way."""
    pytester.makeini(INI)
    file = pytester.makepyfile(test_it=TRAINING)
    config = pytester.parseconfig("--override-ini=addopts=")
    words = pytest_plugin.repeated(config, "test_it.py::test_step")
    variables = pytest_plugin.environment(os.environ)
    program = Program("now", [sys.executable, "-m", *words], pytester.path, variables)
    counted = count([program], pytester.mkdir("evidence"))[0]
    assert counted.lead is not None
    found = counters(counted.run_dir, counted.evidence, pytester.path)
    item = found[".item()"]
    assert (item.low, item.high) == (1, 1)
    assert any(file.name in key for key in item.lines)
