"""What every test can rely on, and in what order tests run on several cores."""

from __future__ import annotations

import gc
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

# A shell that starts the tests in the background makes them, and so every child, ignore Ctrl-C.
signal.signal(signal.SIGINT, signal.default_int_handler)

# Compiled once, whatever the shell says: else every process compiles tdiag and every run all tests.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# Of the 700 new objects that Python lets come between two collections of garbage, a test makes
# thousands that all stay.
gc.set_threshold(100_000)

HERE = Path(__file__).parent
# Those that take longest come first, so that no core waits for the other at the end.
FIRST = (
    *("frameworks", "view", "probe", "trial", "e2e", "gate", "duel", "launch", "simulated", "cli"),
    *("zoo", "report", "trace", "test_validate_gpu.py", "test_contributing.py"),
)
# What these share is made once: one TensorBoard and one browser; the plain runs of the zoo.
TOGETHER = (
    ("tests/view/",),
    ("tests/probe/test_zoo_unchanged.py", "tests/zoo/test_zoo_plain.py"),
)


def pytest_configure(config: pytest.Config) -> None:
    """In a fresh checkout every worker would rewrite the assertions of every file: the second one
    begins with the last, and finds those that the first has been at."""
    worker = os.environ.get("PYTEST_XDIST_WORKER", "gw0")
    if worker == "gw1" and config.args == config.getini("testpaths"):
        folders = [package.parent for package in HERE.glob("*/__init__.py")]
        config.args = sorted(map(str, [*HERE.glob("test_*.py"), *folders]), reverse=True)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    def place(item: pytest.Item) -> tuple[int, Path]:
        folder = item.path.relative_to(HERE).parts[0] if HERE in item.path.parents else ""
        return FIRST.index(folder) if folder in FIRST else len(FIRST), item.path

    items.sort(key=place)


def pytest_collection_finish() -> None:
    gc.freeze()  # modules and thousands of tests stay: no collection looks at them


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """With ``-n``, the tests of a file run in one process: what they share is made once."""
    from xdist.scheduler import LoadScopeScheduling

    class ByFile(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = nodeid.split("::")[0]
            return next((group[0] for group in TOGETHER if file.startswith(group)), file)

    config.option.loadscopereorder = False  # else files of many tests come first
    return ByFile(config, log)
