"""The loop around a line is found in its source."""

from __future__ import annotations

import linecache
from pathlib import Path

import pytest

from tdiag.model.place import Place
from tdiag.rules.loop_heads import loop_head

SOURCE = """\
def loss(scores, sizes):
    total = 0
    for n in sizes:
        while n:
            total = total + scores[n]
            n -= 1
        total = total + sum(
            scores[i] for i in range(n)
        )
    return total

for batch in loader:
    value = loss(model(batch))
    value.backward()
"""


@pytest.mark.parametrize(
    ("line", "head"),
    [(2, None), (3, None), (4, None), (5, 4), (6, 4), (7, None), (8, None), (10, None), (13, None)],
)
def test_the_innermost_loop_that_does_not_train(tmp_path: Path, line: int, head: int) -> None:
    script = tmp_path / "train.py"
    script.write_text(SOURCE)
    linecache.checkcache()
    found = loop_head(Place(file=str(script), line=line, function="f"))
    assert (found and found.line) == head


@pytest.mark.parametrize("text", ["for in:", "\0"])
def test_a_file_that_is_no_python_has_none(tmp_path: Path, text: str) -> None:
    (tmp_path / "train.py").write_text(text)
    assert loop_head(Place(file=str(tmp_path / "train.py"), line=1)) is None
    assert loop_head(Place(file=str(tmp_path / "gone.py"), line=1)) is None
