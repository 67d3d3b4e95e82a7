"""The line of a script that makes a setting of the framework that runs its training."""

from __future__ import annotations

import ast

from tdiag.frameworks import settings
from tdiag.model.place import Place
from tdiag.rules.syntax import name_of, place_at, tree_of


def made_at(place: Place | None, code: str, driver: str, parts: tuple[str, ...]) -> Place | None:
    """Of a finding that stands at ``trainer.train()``: the line in the same file that sets what the
    framework's fix for rule ``code`` sets, if there is one and only one; else ``place``. A number
    comes before words: ``eval_steps=50``, then ``eval_strategy="steps"``."""
    runs, names = settings(code, driver, parts)
    tree = tree_of(place.file) if place and runs and names else None
    if place is None or tree is None:
        return place
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    if not any(x.lineno <= place.line <= (x.end_lineno or 0) for x in calls if name_of(x) == runs):
        return place
    words = [word for call in calls for word in call.keywords if word.arg in names]
    words.sort(key=lambda word: (_is_text(word.value), names.index(word.arg or "")))
    if not words or [word.arg for word in words].count(words[0].arg) > 1:
        return place
    return place_at(place.file, words[0].lineno)


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)
