"""What every test can rely on, and in what order tests run on several cores."""

from __future__ import annotations

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

HERE = Path(__file__).parent
# Those that take longest come first, so that no core waits for the other at the end.
FIRST = (
    *("frameworks", "view", "probe", "trial", "e2e", "gate", "duel", "launch", "simulated", "cli"),
    *("zoo", "report"),
)
TOGETHER = "tests/view/"  # one TensorBoard and one browser for all of them


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    def place(item: pytest.Item) -> int:
        folder = item.path.relative_to(HERE).parts[0] if HERE in item.path.parents else ""
        return FIRST.index(folder) if folder in FIRST else len(FIRST)

    items.sort(key=place)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """With ``-n``, the tests of a file run in one process: what they share is made once."""
    from xdist.scheduler import LoadScopeScheduling

    class ByFile(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = nodeid.split("::")[0]
            return TOGETHER if file.startswith(TOGETHER) else file

    config.option.loadscopereorder = False  # else files of many tests come first
    return ByFile(config, log)
