"""`pytest tests/rules -k TD203` finds every test of a rule, wherever it stands."""

from __future__ import annotations

import ast
import functools
import re
from pathlib import Path

import pytest

HERE = Path(__file__).parent
CODE = re.compile(r"TD\d{3}")
MOST = 4  # a table of more rules than this is about rules in general


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Each test is also called by the codes of the rules that it speaks of."""
    for item in items:
        if isinstance(item, pytest.Function) and HERE in item.path.parents:
            item.extra_keyword_matches |= codes(item.path, item.originalname)


@functools.cache
def codes(file: Path, test: str) -> frozenset[str]:
    """The codes in a test, and in what it uses of its file; else those of the whole file."""
    parts, left, seen = top_level(file), [test], set()
    found: set[str] = set()
    while left:
        name = left.pop()
        seen.add(name)
        said = set(CODE.findall(parts[name]))
        found |= said if len(said) <= MOST or name == test else set()
        left += (set(re.findall(r"\w+", parts[name])) & parts.keys()) - seen
    whole = set(CODE.findall(file.read_text(encoding="utf-8")))
    return frozenset(found or (whole if len(whole) <= MOST else ()))


@functools.cache
def top_level(file: Path) -> dict[str, str]:
    """The source of each function and constant of a file."""
    text = file.read_text(encoding="utf-8")
    lines, found = text.splitlines(), {}
    for node in ast.parse(text).body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            names = [node.name]
        elif isinstance(node, ast.Assign):
            names = [target.id for target in node.targets if isinstance(target, ast.Name)]
        else:
            continue
        first = min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", []))])
        found |= dict.fromkeys(names, "\n".join(lines[first - 1 : node.end_lineno]))
    return found
