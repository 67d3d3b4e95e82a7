"""TD712 on loops whose turns need each other."""

from __future__ import annotations

import pytest

from tdiag.rules import td712_model_called_in_a_loop as rule
from tdiag.rules.cells import LEFT
from tdiag.rules.examples import MS, at, budget, op_line, ops, phases
from tests.rules.test_td712_model_calls import PARTS, PRICE, called, spent


@pytest.mark.parametrize(("loop", "chained"), [(60, True), (70, False)])
def test_a_loop_with_a_recurrence_is_one_though_its_inputs_could_be_computed_at_once(
    loop: int, chained: bool
) -> None:
    often = {"turns": 1.0, "repeated": 32.0, "one_row": True}
    lines = ops(
        op_line(24, "forward", 96, grad_calls=96.0, elapsed_ns=3 * MS, names={"linear": 32.0},
                series=32.0, looped_at=at(60), **often),
        op_line(25, "forward", 64, grad_calls=64.0, elapsed_ns=2 * MS, names={"linear": 32.0},
                series=1.0, looped_at=at(loop), **often),
    )  # fmt: skip
    found = rule.check(
        budget(**PARTS), phases(**PARTS), called("Net", 1), lines, PRICE, None, None, None, None
    )
    assert found is not None
    assert found.fix.text.startswith("torch.compile" if chained else "Stack the inputs")


@pytest.mark.parametrize(
    ("gates", "module"),
    [
        ({"sigmoid": 64.0, "tanh": 32.0}, "GRU"),
        ({"sigmoid": 96.0, "tanh": 64.0}, "LSTM"),
        ({"tanh": 32.0}, "RNN"),
        ({"sigmoid": 64.0}, ""),
        ({"tanh": 96.0}, ""),
    ],
)
def test_written_out_gates_leave_what_torchs_own_layer_takes(
    gates: dict[str, float], module: str
) -> None:
    chained = {"turns": 1.0, "series": 1.0, "looped_at": at(24), "one_row": True}
    lines = ops(
        op_line(24, "forward", 160, grad_calls=160.0, names={"linear": 64.0, **gates},
                repeated=32.0, elapsed_ns=2 * MS, **chained),
    )  # fmt: skip
    found = rule.check(
        budget(**PARTS), phases(**PARTS), called("Net", 1), lines, PRICE, None, None, None, None
    )
    assert found is not None and found.gain is not None
    if not module:
        assert found.fix.text.startswith("torch.compile")
        return
    assert found.fix.text.startswith(f"If the gates at train.py:24 are those of nn.{module}")
    left = max(LEFT[module] * 32 * PRICE.op_ns, spent(found) / 32)  # one call of 32 stays
    assert found.gain.high_ns == pytest.approx(spent(found) - left)
