"""Derivatives that are computed several times in a step."""

from __future__ import annotations

import pytest

from tdiag.diagnose.engine import run_rule
from tdiag.evidence.sampled import CallFrame, CallTrees
from tdiag.evidence.store import Evidence
from tdiag.evidence.torch_ops import SameInput, SameInputs
from tdiag.model.diagnosis import Finding
from tdiag.rules.catalogue import find
from tdiag.rules.examples import MS, at, budget, call_tree, op_line, ops, phases


@pytest.mark.parametrize(("again_ms", "saved_ms"), [(24.0, 18.0), (0.0, None)])
def test_the_gradient_of_a_loss_for_each_pair_of_tasks(
    again_ms: float, saved_ms: float | None
) -> None:
    """36 derivatives of 32 ms when counted, 24 ms in clean steps: three of four repeat one."""
    grads = op_line(
        14, "backward", 36, names={"grad": 36.0}, elapsed_ns=32 * MS, again_ns=again_ms * MS,
        at=at(14, "flat_grad"),
    )  # fmt: skip
    step, clean = budget(forward=2, backward=24), phases(forward=2, backward=24)
    found = run_rule(find("TD727"), Evidence().add(step, clean, ops(grads)))
    assert isinstance(found, Finding) is (saved_ms is not None)
    if isinstance(found, Finding) and saved_ms:
        assert found.location and found.location.line == 14
        assert found.at_best_ns == pytest.approx(saved_ms * MS)


@pytest.mark.parametrize(("again_ms", "line"), [(12.0, 69), (5.0, 53)])
def test_a_function_that_is_repeated_whole_is_kept_where_it_is_called(
    again_ms: float, line: int
) -> None:
    """A body is run again in each inner step; its `forward` and the learner's share their name."""
    frames = [("main", 96, -1), ("forward", 78, 0), ("adapt", 69, 1), ("forward", 53, 2)]
    trees = CallTrees(
        training=tuple(
            CallFrame(name=name, file=at(1).file, line=number, parent=parent, frac=1.0, user=True)
            for name, number, parent in frames
        ),
        workers=(),
    )
    body = op_line(
        53, "forward", 36, elapsed_ns=14 * MS, again_ns=again_ms * MS, at=at(53, "forward")
    )
    step, clean = budget(forward=20, backward=24), phases(forward=20, backward=24)
    found = run_rule(find("TD727"), Evidence().add(step, clean, ops(body), trees))
    assert isinstance(found, Finding) and found.location is not None
    assert found.location.line == line
    assert ("which is called at train.py:69" in found.summary) is (line == 69)


@pytest.mark.parametrize(("again", "line"), [(1.0, 69), (0.0, 78)])
def test_a_model_that_gets_a_batch_twice_is_called_once_where_it_is_called(
    again: float, line: int
) -> None:
    """A body within a model; half of its calls repeat."""
    trees = call_tree(("main", 96, 1.0), ("margin", 69, 1.0), ("model", 78, 1.0), ("body", 53, 1.0))
    called = SameInput(
        at=at(69, "margin"), name="Module._wrapped_call_impl", phase="forward", calls=1.0,
        again=again, inputs=20, ns=7 * MS, again_ns=7 * MS, size=1 << 12,
    )  # fmt: skip
    body = op_line(53, "forward", 36, elapsed_ns=14 * MS, again_ns=7.1 * MS, at=at(53, "body"))
    step, clean = budget(forward=20, backward=24), phases(forward=20, backward=24)
    same = SameInputs(steps=20, lines=(called,))
    found = run_rule(find("TD727"), Evidence().add(step, clean, ops(body), trees, same))
    assert isinstance(found, Finding) and found.location is not None
    assert found.location.line == line
