"""TD712 on loops whose turns need each other."""

from __future__ import annotations

import pytest

from tdiag.evidence.torch_ops import Dispatch
from tdiag.rules.cells import LEFT, LONG_HIGH, LSTM_LOW, LSTM_TIMES
from tdiag.rules.examples import MS, at, op_line
from tdiag.rules.td712_model_called_in_a_loop import WORKING_HIGH
from tests.rules.test_td712_model_calls import PARTS, PRICE, called, checked, looped, spent


@pytest.mark.parametrize(("loop", "chained"), [(60, True), (70, False)])
def test_a_loop_with_a_recurrence_is_one_though_its_inputs_could_be_computed_at_once(
    loop: int, chained: bool
) -> None:
    often = {"turns": 1.0, "repeated": 32.0, "one_row": True}
    lines = (
        op_line(24, "forward", 96, grad_calls=96.0, elapsed_ns=3 * MS, names={"linear": 32.0},
                series=32.0, looped_at=at(60), **often),
        op_line(25, "forward", 64, grad_calls=64.0, elapsed_ns=2 * MS, names={"linear": 32.0},
                series=1.0, looped_at=at(loop), **often),
    )  # fmt: skip
    found = looped(PARTS, called("Net", 1), *lines)
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
    lines = (
        op_line(24, "forward", 160, grad_calls=160.0, names={"linear": 64.0, **gates},
                repeated=32.0, elapsed_ns=2 * MS, **chained),
    )  # fmt: skip
    found = looped(PARTS, called("Net", 1), *lines)
    assert found is not None and found.gain is not None
    if not module:
        assert found.fix.text.startswith("torch.compile")
        return
    assert found.fix.text.startswith(f"If the gates at train.py:24 are those of nn.{module}")
    left = max(LEFT[module] * 32 * PRICE.op_ns, spent(found) / 32)  # one call of 32 stays
    assert found.gain.high_ns == pytest.approx(spent(found) - left)


def test_a_long_cell_may_win_nothing_and_no_more_than_was_tried() -> None:
    works = Dispatch(op_ns=15, grad_op_ns=70)
    found = checked(called("GRUCell", 32), dispatch=works, one_row=False, names={"gru_cell": 32.0})
    assert found is not None and found.gain is not None
    assert "one call of nn.GRU for its 32 steps" in found.fix.text
    cells = 8 + 12 * 2 / 3  # of the forward and of backward
    beside = spent(found) / MS - cells
    assert found.gain.low_ns == 0, "calls this long may gain nothing"
    most = cells * (1 - 1 / LONG_HIGH) + beside * (1 - 1 / WORKING_HIGH)
    assert found.gain.high_ns / MS == pytest.approx(most, rel=0.01)


def test_stacked_cells_are_counted_each_and_a_head_beside_them_is_called_once() -> None:
    """Two cells and a head in each of 32 turns: each cell is short, a turn is not."""
    often = {"turns": 32.0, "repeated": 32.0, "series": 1.0, "looped_at": at(28)}
    cell = {"grad_calls": 160.0, "names": {"lstm_cell": 32.0, "dim": 32.0}, **often}
    lines = (
        op_line(24, "forward", 160, elapsed_ns=4 * MS, **cell),
        op_line(25, "forward", 160, elapsed_ns=4 * MS, **cell),
        op_line(26, "forward", 96, grad_calls=96.0, elapsed_ns=2 * MS, names={"linear": 32.0},
                **often),
    )  # fmt: skip
    step = {"forward": 10.0, "backward": 20.0, "optimizer": 1.0}
    found = looped(step, called("LSTMCell", 32), *lines)
    assert found is not None and found.gain is not None
    calls = 2 * 32 * PRICE.op_ns
    assert found.gain.low_ns == pytest.approx(LSTM_LOW * calls)
    # Both cells take 24 ms, which is more than all that such calls ever save; the head takes 6 ms.
    cells, head = 24 * MS * (1 - 1 / LSTM_TIMES), 6 * MS * (1 - 1 / WORKING_HIGH)
    fixed = PRICE.grad_op_ns * 320  # of all calls on the cells' lines
    assert found.gain.high_ns == pytest.approx(cells + fixed + head)
    assert "per turn with its backward" in found.summary
