"""What SGD's fused form saves on a CPU: calls on small tensors, passes over large ones."""

from __future__ import annotations

from tdiag.evidence.torch_ops import Dispatch
from tdiag.evidence.training import Optimizer
from tdiag.model.threshold import Threshold
from tdiag.rules.fixed_cost import FIXED_COST_FACTOR

_SOURCE = "By torch.optim.sgd's source (2.13), per parameter tensor"
UPDATE_PASSES = Threshold(
    3, "numbers moved", f"{_SOURCE}: param.add_(grad) reads two and writes one; fused alike."
)
MOMENTUM_CALLS = Threshold(2, "calls", f"{_SOURCE}: the buffer's mul_ and add_.")
MOMENTUM_PASSES = Threshold(
    5, "numbers moved", f"{_SOURCE}: the buffer's mul_ moves two, its add_ three."
)
MOMENTUM_FUSED_PASSES = Threshold(
    2, "numbers moved", f"{_SOURCE}: the fused kernel reads and writes the buffer once."
)
ADDED_PASSES = Threshold(
    3,
    "numbers moved",
    f"{_SOURCE}: weight decay and Nesterov's momentum each make another grad.add; the fused kernel"
    " has both numbers at hand.",
)
_MEASURED = "Measured with torch 2.13, one thread, five settings of SGD,"
CALL_ADDS = Threshold(
    1.6,
    "times a torch.add",
    f"{_MEASURED} tensors of 16 to 1,024 numbers: a call of the loop took 1.6 to 2.2 times as long"
    " (benchmarks/rule_constants.py sgd.CALL_ADDS).",
)
FIXED_LOW = Threshold(
    1.4,
    "times as fast, per call of the loop",
    f"{_MEASURED} tensors of 16 to 1,024 numbers: 1.4 to 2.1 (benchmarks/rule_constants.py"
    " sgd.FIXED_LOW).",
)
FIXED_HIGH = Threshold(
    2.1,
    "times as fast, per call of the loop",
    "Measured together with FIXED_LOW, the most (benchmarks/rule_constants.py sgd.FIXED_HIGH).",
)
FOREACH_FIXED_LOW = Threshold(
    0.8,
    "times as fast, per call of the loop",
    f"{_MEASURED} tensors of 16 and 1,024 numbers, against foreach=True: 0.8 to 1.35"
    " (benchmarks/rule_constants.py sgd.FOREACH_FIXED_LOW).",
)
PLAIN_LOW = Threshold(
    0.83,
    "times as fast",
    "Measured with torch 2.13, one thread, plain SGD, tensors of 65,536 and 1,048,576 numbers: the"
    " fused form moves as much and took 1.0 to 1.2 times as long (benchmarks/rule_constants.py"
    " sgd.PLAIN_LOW).",
)
WORK_LOW = Threshold(
    0.7,
    "of what the passes promise",
    f"{_MEASURED} tensors of 65,536 and 1,048,576 numbers: 0.7 to 1.1"
    " (benchmarks/rule_constants.py sgd.WORK_LOW).",
)
WORK_HIGH = Threshold(
    1.1,
    "of what the passes promise",
    "Measured together with WORK_LOW, the most (benchmarks/rule_constants.py sgd.WORK_HIGH).",
)
FRESH_WORK_HIGH = Threshold(
    3.5,
    "of what the passes promise",
    "Measured as WORK_LOW, with Nesterov's momentum and weight decay, whose loop makes two new"
    " tensors per parameter: 0.7 to 3.5, most where each is fresh memory; against foreach=True,"
    " which makes those of all parameters at once, 0.9 to 3.0"
    " (benchmarks/rule_constants.py sgd.FRESH_WORK_HIGH).",
)


def calls(optimizer: Optimizer) -> float:
    """Torch calls per parameter tensor and step of the form that loops."""
    added = sum(bool(optimizer.config.get(x)) for x in ("weight_decay", "nesterov"))
    return 1 + MOMENTUM_CALLS * bool(optimizer.config.get("momentum")) + added


def fewer_passes(optimizer: Optimizer) -> float:
    """Numbers that the loop moves per parameter ÷ those that the fused form moves."""
    momentum = bool(optimizer.config.get("momentum"))
    added = sum(bool(optimizer.config.get(x)) for x in ("weight_decay", "nesterov"))
    loop = UPDATE_PASSES + MOMENTUM_PASSES * momentum + ADDED_PASSES * added
    return loop / (UPDATE_PASSES + MOMENTUM_FUSED_PASSES * momentum)


def saved_ns(
    optimizer: Optimizer, spent_ns: float, dispatch: Dispatch | None
) -> tuple[float, float]:
    """Least and most that the fused form saves of ``spent_ns``; negative where it is slower.

    The calls' fixed cost shrinks with their number, the rest with the passes over memory. Without
    ``dispatch`` the fixed cost may be nothing or all of it.
    """
    made, least, most = calls(optimizer), 0.0, spent_ns
    if dispatch:
        adds_ns = made * optimizer.tensors * dispatch.op_ns
        # Up to that factor a call may be fixed cost alone, as TD710 has it.
        least, most = min(spent_ns, CALL_ADDS * adds_ns), min(spent_ns, FIXED_COST_FACTOR * adds_ns)
    passes = fewer_passes(optimizer)
    foreach, nesterov = (bool(optimizer.config.get(x)) for x in ("foreach", "nesterov"))
    fixed_low = FOREACH_FIXED_LOW if foreach else FIXED_LOW
    work_low = max(PLAIN_LOW, WORK_LOW * passes)
    work_high = FRESH_WORK_HIGH if foreach or nesterov else WORK_HIGH
    low = least * _saved(fixed_low * made) + (spent_ns - least) * _saved(work_low)
    high = most * _saved(FIXED_HIGH * made) + (spent_ns - most) * _saved(work_high * passes)
    return low, high


def _saved(times_as_fast: float) -> float:
    return 1 - 1 / times_as_fast
