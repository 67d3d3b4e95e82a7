"""What the loop makes at its end for the next step, by its source."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from tdiag.evidence.torch_ops import Ops
from tdiag.model.place import Place
from tdiag.rules.carried import made_for_next_step
from tdiag.rules.examples import op_line, ops, stack

LOOP = """
x = book.features()
for step in range(steps):
    rows = fleet.read()
    y = model({read})
    y.backward()
    optimizer.step()
    {made}
"""


def calls(file: str) -> Ops:
    return ops(
        op_line(5, "forward", 4, at=Place(file, 5, "train")),
        op_line(7, "optimizer", 4, at=Place(file, 7, "train")),
    )


@pytest.mark.parametrize(
    ("read", "made", "carried"),
    [
        ("x", "x = book.features()", True),
        ("x, rows", "x, reward = env.step(y)", True),
        ("rows", "x = book.features()", False),  # nothing reads it
        ("rows", "rows = fleet.read()", False),  # the next turn makes another
        ("x", "book.features()", False),
        ("x", "average = 0.9 * average + y.item()", False),
    ],
)
def test_a_variable_that_the_next_turn_reads(
    read: str, made: str, carried: bool, tmp_path: Path
) -> None:
    file = tmp_path / "train.py"
    file.write_text(LOOP.format(read=read, made=made))
    line = replace(stack(8, 0.5), at=Place(str(file), 8, "train"))
    assert made_for_next_step(line, calls(str(file)), None) is carried
