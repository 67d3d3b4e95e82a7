"""Loops whose rounds need the one before: no expression over whole tensors replaces them."""

from __future__ import annotations

import ast

from tdiag.model.place import Place
from tdiag.rules.loop_heads import loop_around
from tdiag.rules.syntax import name_of, nodes_of, statements_of

# An update by these gathers or reduces what the rounds give, in any order.
_REDUCES = {
    "max", "min", "maximum", "minimum", "add", "add_", "sum", "mul", "logaddexp", "cat", "concat",
    "stack", "hstack", "vstack", "append", "logical_or", "logical_and",
}  # fmt: skip
_REDUCING = (ast.Add, ast.Sub, ast.Mult, ast.BitOr, ast.BitAnd)


def carried_state(at: Place) -> str:
    """The variable that the innermost loop around the line carries from round to round: a round
    reads it and then computes it anew, and not only as a sum, a maximum or a collection of what the
    rounds give. "" without one, for a comprehension or the training's own loop, or if the source is
    not known."""
    loop = loop_around(at)
    if loop is None:
        return ""
    read: set[str] = set()
    stored: set[str] = set()
    computed: set[str] = set()
    for statement in statements_of(loop):
        names = [x for x in nodes_of(statement, whole=False) if isinstance(x, ast.Name)]
        sets = {x.id for x in names if isinstance(x.ctx, ast.Store)}
        reads = {x.id for x in names if isinstance(x.ctx, ast.Load)}
        if isinstance(statement, ast.AugAssign):
            reads |= sets
        read |= reads - stored - (sets if _reduces(statement, sets) else set())
        stored |= sets
        computed |= sets if _computes(statement) else set()
    return min(read & computed, default="")


def _reduces(statement: ast.stmt, sets: set[str]) -> bool:
    """Whether it adds to one of the variables that it sets, or the like. ``a * x + b`` does not."""
    if isinstance(statement, ast.AugAssign):
        return isinstance(statement.op, _REDUCING)
    value = statement.value if isinstance(statement, ast.Assign) else None
    if isinstance(value, ast.Call):
        return name_of(value) in _REDUCES
    if not isinstance(value, ast.BinOp) or not isinstance(value.op, _REDUCING):
        return False
    return any(isinstance(x, ast.Name) and x.id in sets for x in (value.left, value.right))


def _computes(statement: ast.stmt) -> bool:
    """Whether it does more than to remember what another variable holds."""
    if isinstance(statement, ast.AugAssign):
        return True
    value = statement.value if isinstance(statement, ast.Assign) else None
    return isinstance(value, ast.AST) and any(
        isinstance(x, ast.Call | ast.BinOp) for x in ast.walk(value)
    )
