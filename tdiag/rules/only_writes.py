"""Functions whose only effect is what they write, by their source."""

from __future__ import annotations

import ast
import linecache
from collections.abc import Iterator
from functools import lru_cache

from tdiag.evidence.sampled import WRITES
from tdiag.model.place import Place
from tdiag.rules.syntax import innermost, tree_of

_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_CONTAINERS = (ast.Dict, ast.List, ast.Set, ast.DictComp, ast.ListComp, ast.SetComp)
_MAKE_CONTAINERS = ("dict", "list", "set", "defaultdict", "OrderedDict", "Counter")


@lru_cache(maxsize=256)
def only_writes(at: Place) -> bool:
    """Whether the function around the line writes a log and has no other effect: it returns no
    value, stores nothing outside its own variables, and calls nothing else as a statement. What it
    computes is then computed to be written. False if the source is not known."""
    text = "".join(linecache.getlines(at.file))
    function = innermost(tree_of(at.file), _FUNCTIONS, at.line)
    if not isinstance(function, _FUNCTIONS):
        return False
    if not WRITES.search(ast.get_source_segment(text, function) or ""):
        return False
    inside = [node for statement in function.body for node in ast.walk(statement)]
    own = set(_containers(inside))
    return not any(_has_effect(node, own, text) for node in inside)


def _containers(nodes: list[ast.AST]) -> Iterator[str]:
    """The variables that hold containers which the function made."""
    for node in nodes:
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value and _is_new(node.value):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            yield from (x.id for x in targets if isinstance(x, ast.Name))


def _is_new(value: ast.expr) -> bool:
    called = value.func if isinstance(value, ast.Call) else None
    name = called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")
    return isinstance(value, _CONTAINERS) or name in _MAKE_CONTAINERS


def _has_effect(node: ast.AST, own: set[str], text: str) -> bool:
    """Whether more than a variable or container of the function's own is changed. ``text``: the
    file's."""
    if isinstance(node, ast.Return):
        value = node.value
        return value is not None and not (isinstance(value, ast.Constant) and value.value is None)
    if isinstance(node, ast.Yield | ast.YieldFrom | ast.Global | ast.Nonlocal | ast.Delete):
        return True
    if isinstance(node, ast.Attribute | ast.Subscript) and isinstance(node.ctx, ast.Store):
        return isinstance(node, ast.Attribute) or _root(node) not in own
    if not isinstance(node, ast.Expr) or isinstance(node.value, ast.Constant):
        return False
    called = node.value.func if isinstance(node.value, ast.Call) else None
    filled = isinstance(called, ast.Attribute) and _root(called) in own
    return not (filled or WRITES.search(ast.get_source_segment(text, node) or ""))


def _root(node: ast.expr) -> str:
    """The variable at the beginning of ``row["loss"].x``; "" if there is none."""
    while isinstance(node, ast.Attribute | ast.Subscript):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""
