"""The `for` or `while` statement around a line, by its source."""

from __future__ import annotations

import ast
import linecache
import re

from msgspec.structs import replace

from tdiag.model.place import Place
from tdiag.rules.syntax import function_at, innermost, tree_of

_LOOPS = (ast.For, ast.AsyncFor, ast.While)
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
# A loop over batches is the training itself.
TRAINS = re.compile(r"\.(backward|step)\(|\bbackward\(")


def in_a_loop(at: Place) -> bool:
    """Whether the line is in a loop or a comprehension of its own function."""
    tree = tree_of(at.file)
    loop = innermost(tree, (*_LOOPS, *_COMPREHENSIONS), at.line)
    function = function_at(at)
    return loop is not None and (function is None or loop.lineno >= function.lineno)


def loop_head(at: Place) -> Place | None:
    """Where the loop around the line begins: :func:`loop_around`."""
    loop = loop_around(at)
    return replace(at, line=loop.lineno) if loop else None


def loop_around(at: Place) -> ast.For | ast.AsyncFor | ast.While | None:
    """The innermost loop in whose body the line is. None if there is none, if the line is itself a
    loop or a comprehension, or if its loop trains."""
    loop = innermost(tree_of(at.file), (*_LOOPS, *_COMPREHENSIONS), at.line)
    if not isinstance(loop, _LOOPS) or loop.lineno == at.line:
        return None
    body = "".join(linecache.getlines(at.file)[loop.lineno - 1 : loop.end_lineno])
    return None if TRAINS.search(body) else loop
