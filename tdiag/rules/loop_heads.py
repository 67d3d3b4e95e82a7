"""The `for` or `while` statement around a line, by its source."""

from __future__ import annotations

import ast
import linecache
import re
from collections.abc import Iterator

from msgspec.structs import replace

from tdiag.model.place import Place
from tdiag.rules.syntax import innermost, tree_of

_LOOPS = (ast.For, ast.AsyncFor, ast.While)
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
_ADDING = {"add", "index_add", "scatter_add", "scatter_reduce", "maximum", "minimum"}
# A loop over batches is the training itself.
TRAINS = re.compile(r"\.(backward|step)\(|\bbackward\(")


def in_a_loop(at: Place) -> bool:
    """Whether the line is in a loop or a comprehension of its own function."""
    tree = tree_of(at.file)
    loop = innermost(tree, (*_LOOPS, *_COMPREHENSIONS), at.line)
    function = innermost(tree, (ast.FunctionDef, ast.AsyncFunctionDef), at.line)
    return loop is not None and (function is None or loop.lineno >= function.lineno)


def loop_head(at: Place) -> Place | None:
    """The innermost loop in whose body the line is. None if there is none, if the line is itself a
    loop or a comprehension, or if its loop trains."""
    loop = innermost(tree_of(at.file), (*_LOOPS, *_COMPREHENSIONS), at.line)
    if not isinstance(loop, _LOOPS) or loop.lineno == at.line:
        return None
    body = "".join(linecache.getlines(at.file)[loop.lineno - 1 : loop.end_lineno])
    return None if TRAINS.search(body) else replace(at, line=loop.lineno)


def carries(at: Place) -> bool:
    """Whether a turn of the innermost loop around the line needs the one before: a variable of its
    body is read before the body sets it. What is only added up, or counted, needs none."""
    loop = innermost(tree_of(at.file), _LOOPS, at.line)
    body = list(_statements(loop.body)) if isinstance(loop, _LOOPS) else []
    sets = [_names(x, ast.Store) for x in body]
    unset = set().union(*sets)
    for statement, assigned in zip(body, sets, strict=True):
        if not _adds_up(statement) and _names(statement, ast.Load) & unset:
            return True
        unset -= assigned
    return False


def _statements(body: list[ast.stmt]) -> Iterator[ast.stmt | ast.expr]:
    """The body's statements in order; of a compound one its head, then its own."""
    for statement in body:
        inner = [getattr(statement, name, []) for name in ("body", "orelse", "finalbody")]
        if any(inner):
            heads = (getattr(statement, name, None) for name in ("test", "iter"))
            yield from (head for head in heads if head is not None)
            yield from (x for part in inner for x in _statements(part))
        else:
            yield statement


def _names(statement: ast.stmt | ast.expr, context: type[ast.expr_context]) -> set[str]:
    names = (x for x in ast.walk(statement) if isinstance(x, ast.Name))
    found = {x.id for x in names if isinstance(x.ctx, context)}
    if isinstance(statement, ast.AugAssign) and isinstance(statement.target, ast.Name):
        found.add(statement.target.id)  # it is read as well
    return found


def _adds_up(statement: ast.stmt | ast.expr) -> bool:
    """``total += x``, ``total = total + x`` and ``total = total.index_add(...)``."""
    if isinstance(statement, ast.AugAssign):
        return isinstance(statement.op, (ast.Add, ast.Sub))
    value = getattr(statement, "value", None)
    onto: ast.expr | None = None
    if isinstance(value, ast.BinOp) and isinstance(value.op, ast.Add):
        onto = value.left
    elif isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute):
        onto = value.func.value if value.func.attr in _ADDING else None
    targets = getattr(statement, "targets", [])
    return isinstance(onto, ast.Name) and any(
        isinstance(x, ast.Name) and x.id == onto.id for x in targets
    )
