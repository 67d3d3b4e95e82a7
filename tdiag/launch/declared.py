"""Which options a program declares, read from its source and from the user's modules it imports."""

from __future__ import annotations

import ast
import tokenize
from collections.abc import Iterator
from pathlib import Path

MOST_FILES = 100  # a parser stands near its script; a whole monorepo is not searched


def declared_options(source: Path | None) -> frozenset[str]:
    """String constants that look like options, in this file and in the modules it imports.

    Only modules beside the file or in the working directory are followed, which is where a
    program keeps its parser; installed packages are not. Empty if the file cannot be read.
    """
    if source is None:
        return frozenset()
    found: set[str] = set()
    waiting, seen = [source], set[Path]()
    while waiting and len(seen) < MOST_FILES:
        path = waiting.pop(0)
        if path in seen:
            continue
        seen.add(path)
        tree = _parse(path)
        for node in ast.walk(tree) if tree else ():
            if isinstance(node, ast.Constant) and str(node.value).startswith("-"):
                found.add(str(node.value))
            elif isinstance(node, ast.Import | ast.ImportFrom):
                waiting += _local(node, path)
    return frozenset(found)


def _parse(path: Path) -> ast.Module | None:
    try:
        with tokenize.open(path) as file:
            return ast.parse(file.read())
    except (OSError, SyntaxError, ValueError):
        return None


def _local(node: ast.Import | ast.ImportFrom, importer: Path) -> Iterator[Path]:
    """The files of the user's own that an import statement can mean."""
    bases = [importer.parent, Path()]
    if isinstance(node, ast.Import):
        names = [alias.name for alias in node.names]
    else:
        if node.level:
            bases = [[importer.parent, *importer.parent.parents][node.level - 1]]
        stem = f"{node.module}." if node.module else ""
        names = [node.module or "", *(stem + alias.name for alias in node.names)]
    for base in bases:
        for name in filter(None, names):
            path = base.joinpath(*name.split("."))
            for file in (path.with_suffix(".py"), path / "__init__.py"):
                if file.is_file():
                    yield file.resolve()
