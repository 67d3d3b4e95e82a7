"""The fixture ``tdiag_step_gate``: `tdiag check` for a training step that lives in a test.

The test's own process measures nothing: it has other tests in it. `tdiag check` runs this one test
by itself, in fresh processes, and there the fixture repeats the step until tdiag has enough.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from typing import Any, NoReturn

import pytest

from tdiag.children import program

REPEAT = "TDIAG_STEP_GATE"  # in the environment of the processes that repeat the step
EXIT_CODES = {0: "pass", 1: "regressed", 2: "broken", 3: "inconclusive"}


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("tdiag", "tdiag: step-time regression gate")
    group.addoption("--tdiag-update", action="store_true",
                    help="measure the gated steps and write their baseline instead")  # fmt: skip
    parser.addini("tdiag_baseline", "baseline file of tdiag_step_gate, from the root directory",
                  default="tdiag-baseline.json")  # fmt: skip


@pytest.fixture
def tdiag_step_gate(request: pytest.FixtureRequest) -> Callable[..., None]:
    """``tdiag_step_gate(step, *options)``: fail if a call of ``step`` became slower than the
    baseline's, or does more. ``options`` are those of `tdiag check`, as words.

    ``step`` is called without arguments, over and over, and must train: what ends a step is the
    optimizer's ``step()`` or a ``backward()``. Skips where the noise is larger than the question.
    """

    def gate(step: Callable[[], object], *options: str) -> None:
        if os.environ.get(REPEAT):
            _repeat(step)
        _check(request, options)

    return gate


def _repeat(step: Callable[[], object]) -> NoReturn:
    """Until tdiag ends the run, by SystemExit, which pytest would call a failure of the test."""
    try:
        while True:
            step()
    except SystemExit:
        pytest.exit("tdiag has seen enough", returncode=0)


def _check(request: pytest.FixtureRequest, options: tuple[str, ...]) -> None:
    config, node = request.config, request.node.nodeid
    if config.getoption("tdiag_update"):
        options = (*options, "--update")
    done = subprocess.run(
        command(config, node, options), cwd=config.rootpath, text=True, errors="replace",
        capture_output=True, check=False, stdin=subprocess.DEVNULL, env=environment(os.environ),
    )  # fmt: skip
    outcome = EXIT_CODES.get(done.returncode, "broken")
    if outcome == "broken":
        update = f"\n\nA new baseline: pytest {node} --tdiag-update"
        pytest.fail(
            f"tdiag check gave no result\n{done.stderr}{done.stdout}{update}", pytrace=False
        )
    if outcome == "regressed":
        pytest.fail(f"the step regressed\n{done.stdout}", pytrace=False)
    if outcome == "inconclusive":
        pytest.skip(f"inconclusive: {' '.join(done.stdout.split())}")
    print(done.stdout or done.stderr)


def command(config: pytest.Config, node: str, options: tuple[str, ...]) -> list[str]:
    """Of the check."""
    baseline = ("--baseline", str(config.getini("tdiag_baseline")))
    return [*program("tdiag"), "check", "--quiet", *baseline, *options, "-m",
            *repeated(config, node)]  # fmt: skip


def repeated(config: pytest.Config, node: str) -> list[str]:
    """The module and its arguments that repeat the step, also the baseline's name for it.

    The ini file's ``addopts`` are left out, since parallel workers, coverage or markers would
    change what is measured; how test modules are imported is not. Long options only: tdiag takes
    its own short ones wherever they stand.
    """
    return ["pytest", node, "--capture=no", "--override-ini=addopts=", "-p", "no:cacheprovider",
            f"--import-mode={config.getoption('importmode')}"]  # fmt: skip


def environment(own: Any) -> dict[str, str]:
    """That of the check: the test is repeated there, as long as it takes."""
    kept = {k: v for k, v in own.items() if k not in ("PYTEST_ADDOPTS", "PYTEST_CURRENT_TEST")}
    return {**kept, REPEAT: "1", "PYTEST_TIMEOUT": "0", "COLUMNS": "80"}
