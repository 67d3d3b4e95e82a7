"""What the loop makes at its end for the next step: a batch, features, an observation."""

from __future__ import annotations

import ast

from tdiag.evidence.sampled import CallTrees, StackLine
from tdiag.evidence.torch_ops import Ops
from tdiag.rules.loop_lines import chain, step_spans
from tdiag.rules.syntax import innermost, tree_of


def made_for_next_step(line: StackLine, ops: Ops, trees: CallTrees | None) -> bool:
    """Whether the line, or what leads to it, sets a variable in the loop that statements above it
    read, so that it is for the next turn: ``x = book.features()`` as the loop's last line. By the
    source; false if that is not known."""
    frames = trees.training if trees else ()
    spans = step_spans(ops, frames)
    for (file, name), number in chain(line, frames):
        if (file, name) in spans:
            return _carried(file, number)
    return False


def _carried(file: str, number: int) -> bool:
    tree = tree_of(file)
    loop = innermost(tree, (ast.For, ast.While), number)
    statement = innermost(tree, (ast.stmt,), number)
    if not isinstance(loop, ast.For | ast.While) or not isinstance(statement, ast.Assign):
        return False
    made = {name for target in statement.targets for name in _names(target, ast.Store)}
    for above in loop.body:
        if above.lineno >= statement.lineno:
            return False
        if made & _names(above, ast.Load):
            return True
        made -= _names(above, ast.Store)
    return False


def _names(node: ast.AST, kind: type[ast.expr_context]) -> set[str]:
    found = (x for x in ast.walk(node) if isinstance(x, ast.Name))
    return {x.id for x in found if isinstance(x.ctx, kind)}
