"""The `for` or `while` statement around a line, by its source."""

from __future__ import annotations

import ast
import linecache
import re

from msgspec.structs import replace

from tdiag.model.place import Place

_LOOPS = (ast.For, ast.AsyncFor, ast.While)
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
# A loop over batches is the training itself.
_TRAINS = re.compile(r"\.(backward|step)\(|\bbackward\(")


def loop_head(at: Place) -> Place | None:
    """The innermost loop in whose body the line is. None if there is none, if the line is itself a
    loop or a comprehension, or if its loop trains."""
    lines = linecache.getlines(at.file)
    try:
        tree = ast.parse("".join(lines))
    except (SyntaxError, ValueError):  # not Python, or a newer version of it
        return None
    around = [
        node
        for node in ast.walk(tree)
        if isinstance(node, (*_LOOPS, *_COMPREHENSIONS))
        and node.lineno <= at.line <= (node.end_lineno or 0)
    ]
    innermost = max(around, key=lambda node: node.lineno, default=None)
    if not isinstance(innermost, _LOOPS) or innermost.lineno == at.line:
        return None
    body = "".join(lines[innermost.lineno - 1 : innermost.end_lineno])
    return None if _TRAINS.search(body) else replace(at, line=innermost.lineno)
