"""`pytest tests/rules -k TD203` finds every test of a rule, wherever it stands."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from types import FunctionType, ModuleType

import pytest

from tdiag.rules.catalogue import Rule

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Each test is also called by the codes of the rules that it speaks of."""
    for item in items:
        if isinstance(item, pytest.Function) and HERE in item.path.parents:
            item.extra_keyword_matches |= codes(item.function, item.module)


def codes(test: FunctionType, module: ModuleType) -> set[str]:
    """The codes in a test, and in what it uses of its module; else those of the whole module."""
    seen: set[str] = set()
    found = _codes(test, module, seen)
    return found or set(re.findall(r"TD\d{3}", inspect.getsource(module)))


def _codes(function: FunctionType, module: ModuleType, seen: set[str]) -> set[str]:
    found = set(re.findall(r"TD\d{3}", inspect.getsource(function)))
    for name in set(function.__code__.co_names) - seen:
        seen.add(name)
        used = vars(module).get(name)
        if isinstance(used, Rule):
            found.add(used.code)
        elif isinstance(used, str):
            found |= set(re.findall(r"^TD\d{3}$", used))
        elif isinstance(used, FunctionType) and used.__module__ == module.__name__:
            found |= _codes(used, module, seen)
    return found
