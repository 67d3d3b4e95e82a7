"""Which of the user's lines a finding names, if others call what takes the time."""

from __future__ import annotations

from pathlib import Path

import pytest

from tdiag.diagnose.engine import run_rule
from tdiag.evidence.sampled import CallFrame, CallTrees
from tdiag.evidence.store import Evidence
from tdiag.evidence.torch_ops import Dispatch
from tdiag.model.diagnosis import Finding
from tdiag.rules.callers import common_caller, module_called_at
from tdiag.rules.catalogue import find
from tdiag.rules.examples import at, budget, op_line, ops, phases

MODULE = "/venv/torch/nn/modules/module.py"


def tree(*frames: tuple[str, int, int, float], file: str = at(1).file) -> CallTrees:
    """Name, line, the caller's number, share; line 0 is torch's module."""
    return CallTrees(
        training=tuple(
            CallFrame(
                name=name, file=file if line else MODULE, line=line, parent=parent, frac=share,
                user=line > 0,
            )
            for name, line, parent, share in frames
        ),
        workers=(),
    )  # fmt: skip


def test_the_line_through_which_nearly_all_samples_come() -> None:
    mine = [
        ("main", 54, -1, 1.0), ("meta", 32, 0, 1.0), ("task", 27, 1, 0.6), ("fit", 23, 2, 0.6),
        ("task", 29, 1, 0.4), ("fit", 23, 4, 0.4),
    ]  # fmt: skip
    spots = {at(23).spot}
    assert common_caller(spots, tree(*mine)) == at(32, "meta")
    elsewhere = [*mine, ("main", 70, -1, 0.5), ("fit", 23, 6, 0.5)]
    assert common_caller(spots, tree(*elsewhere)) is None
    assert common_caller(spots, None) is None


def test_the_call_of_the_module_that_has_most_samples_is_named() -> None:
    """Teacher and student are of one class; the teacher, at 52, takes twice as long."""
    seen = tree(
        ("main", 80, -1, 1.0), ("train", 52, 0, 0.6), ("_call_impl", 0, 1, 0.6),
        ("forward", 26, 2, 0.6), ("train", 53, 0, 0.3), ("_call_impl", 0, 4, 0.3),
        ("forward", 26, 5, 0.3),
    )  # fmt: skip
    assert module_called_at({at(26).spot}, seen) == at(52, "train")
    assert module_called_at({at(99).spot}, seen) is None


SOURCE = """\
def score(a, b):
    return (a * b).sum()

def loss(a, b):
    scores = []
    for order in permutations(range(4)):
        scores.append(score(a[list(order)], b))
    return max(scores)

def straight(a, b):
    return score(a, b)
"""


@pytest.mark.parametrize(("caller", "line"), [(7, 7), (11, 2)])
def test_a_loss_that_a_loop_calls_is_named_where_the_loop_calls_it(
    caller: int, line: int, tmp_path: Path
) -> None:
    script = tmp_path / "losses.py"
    script.write_text(SOURCE)
    file = str(script)
    parts = {"forward": 4.0, "loss": 9.0, "backward": 12.0, "optimizer": 1.0}
    inside = op_line(2, "loss", 400, grad_calls=400.0, in_loop=True, at=at(2, "score", file),
                     names={"mul": 200.0, "sum": 200.0})  # fmt: skip
    calls = ops(inside, op_line(20, "forward", 12, grad_calls=12.0))
    seen = tree(("main", 90, -1, 1.0), ("loss", caller, 0, 0.9), ("score", 2, 1, 0.9), file=file)
    price = Dispatch(op_ns=1500, grad_op_ns=7000)
    evidence = Evidence().add(budget(**parts), phases(**parts), calls, price, seen)
    found = run_rule(find("TD501"), evidence)
    assert isinstance(found, Finding) and found.location is not None
    assert found.location.line == line
    assert ("losses.py:2, called in the loop at losses.py:7" in found.summary) is (line == 7)
