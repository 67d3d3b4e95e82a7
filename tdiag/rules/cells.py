"""Torch's recurrent cells in a loop: what one call on the whole sequence saves."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from tdiag.evidence.torch_ops import Dispatch, OpLine
from tdiag.model.threshold import Threshold

SHORT_CELL = Threshold(
    300,
    "times a torch.add, a call and its backward",
    "Heuristic: of cells of 16 to 512 units, 40 steps of 4 to 128 sequences (torch 2.13, one core),"
    " those that took up to 0.5 ms a call saved nearly the same each, whatever their size (a"
    " torch.add took 1.65 µs); of the longer ones, some were faster in a loop.",
)
LONG_HIGH = Threshold(
    2.5,
    "times as fast",
    "Measured, torch 2.13, one core, cells that take longer than that: the most, an LSTM of 512"
    " units on 16 sequences; the least was 0.8, an LSTM of 128 units on 128"
    " (benchmarks/rule_constants.py cells).",
)
_SHORT = (
    "Measured, cells of 16 to 128 units, short calls: the {} (benchmarks/rule_constants.py cells)."
)
LSTM_LOW = Threshold(90, "times a torch.add saved per call", _SHORT.format("least"))
LSTM_HIGH = Threshold(140, "times a torch.add saved per call", _SHORT.format("most"))
GRU_LOW = Threshold(18, "times a torch.add saved per call", _SHORT.format("least"))
GRU_HIGH = Threshold(50, "times a torch.add saved per call", _SHORT.format("most"))
RNN_LOW = Threshold(25, "times a torch.add saved per call", _SHORT.format("least"))
RNN_HIGH = Threshold(60, "times a torch.add saved per call", _SHORT.format("most"))
LSTM_TIMES = Threshold(
    4.2,
    "times as fast",
    "Measured, 64 units and more, short calls: the most, an LSTM of 64 units, 40 steps of 16"
    " (benchmarks/rule_constants.py cells).",
)
OTHER_TIMES = Threshold(
    1.8,
    "times as fast",
    "Measured, 16 to 128 units, short calls: the most, an RNN of 16 units"
    " (benchmarks/rule_constants.py cells).",
)
_LEFT = (
    "Measured, a step of 16 to 128 units in one call on the sequence, with its backward: the least"
    " (benchmarks/rule_constants.py cells)."
)
LSTM_LEFT = Threshold(10, "times a torch.add per step", _LEFT)
GRU_LEFT = Threshold(80, "times a torch.add per step", _LEFT)
RNN_LEFT = Threshold(28, "times a torch.add per step", _LEFT)
LEFT = {"LSTM": LSTM_LEFT, "GRU": GRU_LEFT, "RNN": RNN_LEFT}
_SAVED = {
    "LSTM": (LSTM_LOW, LSTM_HIGH, LSTM_TIMES),
    "GRU": (GRU_LOW, GRU_HIGH, OTHER_TIMES),
    "RNN": (RNN_LOW, RNN_HIGH, OTHER_TIMES),
}


def written_out(lines: Sequence[OpLine], turns: float) -> str:
    """The module whose gates a loop of so many turns computes, by its sigmoids and hyperbolic
    tangents in a turn: ``LSTM`` (its candidate and its state), ``GRU``, ``RNN``; else empty."""
    made = Counter[str]()
    for line in lines:
        made.update(line.names)
    sigmoids, tangents = (round(made[name] / turns) for name in ("sigmoid", "tanh"))
    if tangents == 2 and sigmoids:
        return "LSTM"
    if tangents != 1:
        return ""
    return "GRU" if sigmoids else "RNN"


def saved_by_sequence(
    sequence: str, calls: float, spent_ns: float, dispatch: Dispatch
) -> tuple[float, float]:
    """The least and the most that ``nn.LSTM``, ``nn.GRU`` or ``nn.RNN`` saves of ``spent_ns``, the
    time of ``calls`` cells and their backward, ns per step."""
    if spent_ns > calls * SHORT_CELL * dispatch.op_ns:
        return 0.0, spent_ns * (1 - 1 / LONG_HIGH)
    least, most, faster = _SAVED[sequence]
    # The loop does more than the cell: it takes the input of each step and collects the outputs.
    high = max(most * calls * dispatch.op_ns, spent_ns * (1 - 1 / faster))
    return min(least * calls * dispatch.op_ns, spent_ns), min(high, spent_ns)
