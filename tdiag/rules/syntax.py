"""The syntax tree of a user's file."""

from __future__ import annotations

import ast
import linecache
from collections.abc import Iterator
from functools import lru_cache

from tdiag.model.place import Place


def tree_of(file: str) -> ast.Module | None:
    """None if the file is gone, is not Python, or is of a newer version of it."""
    return _parsed("".join(linecache.getlines(file)))


@lru_cache(maxsize=64)
def _parsed(text: str) -> ast.Module | None:
    try:
        return ast.parse(text)
    except (SyntaxError, ValueError):
        return None


def statement_text(file: str, line: int) -> str:
    """The text of the statement on this line, which may take several; of one with a body (``if``,
    ``for``) the line alone."""
    return _statement_text("".join(linecache.getlines(file)), line)


@lru_cache(maxsize=4096)
def _statement_text(text: str, line: int) -> str:
    found = innermost(_parsed(text), (ast.stmt,), line)
    if found is None or hasattr(found, "body"):
        return "".join(text.splitlines(keepends=True)[line - 1 : line])
    return ast.get_source_segment(text, found) or ""


def name_of(call: ast.Call) -> str:
    """``pad`` for ``F.pad(x)`` and ``pad(x)``; "" for a call of anything else."""
    return call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")


def function_around(at: Place) -> str:
    """The name of the place's function; of a comprehension's, that of the function around it."""
    if not at.function.endswith(("comp>", "genexpr>")):
        return at.function
    found = function_at(at)
    return found.name if found else at.function


def function_at(at: Place) -> ast.FunctionDef | ast.AsyncFunctionDef | None:
    """The innermost function whose source holds the line."""
    found = innermost(tree_of(at.file), (ast.FunctionDef, ast.AsyncFunctionDef), at.line)
    return found if isinstance(found, ast.FunctionDef | ast.AsyncFunctionDef) else None


def place_at(file: str, line: int) -> Place:
    """The place with the function around it, "" outside of any."""
    function = function_at(Place(file, line))
    return Place(file, line, function.name if function else "")


def innermost(
    tree: ast.Module | None, kinds: tuple[type[ast.stmt | ast.expr], ...], line: int
) -> ast.stmt | ast.expr | None:
    """The innermost node of these kinds around the line; None without one."""
    around = [
        node
        for node in (ast.walk(tree) if tree else ())
        if isinstance(node, kinds) and node.lineno <= line <= (node.end_lineno or 0)
    ]
    return max(around, key=lambda node: node.lineno, default=None)


def statements_of(scope: ast.AST) -> Iterator[ast.stmt]:
    """All statements below, without those of functions and classes defined there."""
    for node in ast.iter_child_nodes(scope):
        if isinstance(node, ast.stmt):
            yield node
        if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            yield from statements_of(node)


def nodes_of(statement: ast.stmt, whole: bool) -> Iterator[ast.AST]:
    """The statement's nodes; ``whole``: with those of the statements within."""
    level: list[ast.AST] = [statement]
    while level:
        node = level.pop()
        yield node
        level += [x for x in ast.iter_child_nodes(node) if whole or not isinstance(x, ast.stmt)]
