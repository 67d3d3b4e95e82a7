"""A model, or one of its layers, that is called in a loop before one backward."""

from __future__ import annotations

import math
from dataclasses import dataclass

from tdiag.evidence.sampled import CallTrees
from tdiag.evidence.steps import Phases
from tdiag.evidence.torch_ops import OpLine, Ops
from tdiag.evidence.training import Modules
from tdiag.model.place import Place
from tdiag.model.threshold import MAJORITY_FRAC, Threshold
from tdiag.rules.callers import lines_below
from tdiag.rules.cells import written_out
from tdiag.rules.loops import LAYERS

MIN_MODEL_CALLS = Threshold(
    12,
    "calls before one backward",
    "Heuristic: pairs, triplets and crops call a model two to ten times on purpose.",
)
# Torch's recurrent cells, as modules and functions, and the modules for whole sequences.
SEQUENCES = {
    "LSTMCell": "LSTM", "GRUCell": "GRU", "RNNCell": "RNN", "lstm_cell": "LSTM", "gru_cell": "GRU",
    "rnn_tanh_cell": "RNN", "rnn_relu_cell": "RNN",
}  # fmt: skip


@dataclass(frozen=True)
class ModelLoop:
    """``calls``: training calls of the model (or of a layer with the same weights), per clean step;
    ``each``: before each backward; ``series``: how many of these needed no earlier one's result, 0
    = unknown. ``at``: the line that repeats them, else where the module is called. ``lines``: the
    loop's lines, if torch calls were counted, in steps that made ``counted`` calls. ``one_row``:
    most calls got one sample. ``looped``: a line that goes through independent calls is known."""

    name: str
    at: Place | None
    calls: float
    each: float
    lines: tuple[OpLine, ...]
    counted: float
    one_row: bool
    series: float = 0.0
    looped: bool = False

    @property
    def fewest(self) -> float:
        """Calls before each backward that remain if those that need no other's result are one."""
        return max(1.0, self.each / self.series) if self.series > 1 else 1.0

    @property
    def chained(self) -> bool:
        """Each call needs the result of the one before it."""
        return self.series == 1

    @property
    def acts(self) -> bool:
        """Most of its calls record no gradients: an agent's, if there is one."""
        recorded = sum(line.grad_calls for line in self.lines)
        return recorded < MAJORITY_FRAC * sum(line.calls for line in self.lines)

    @property
    def written_out(self) -> str:
        """The module for whole sequences whose gates this recurrence computes."""
        return written_out(self.lines, self.counted) if self.chained and not self.sequence else ""

    @property
    def sequence(self) -> str:
        """The module for whole sequences, if this is a recurrent cell."""
        return SEQUENCES.get(self.name, "")

    @property
    def of_cells(self) -> tuple[tuple[OpLine, ...], float]:
        """The lines that call recurrent cells, and how often in the counted steps."""
        lines = tuple(x for x in self.lines if x.names.keys() & SEQUENCES.keys())
        return lines, sum(x.names.get(name, 0.0) for x in lines for name in SEQUENCES)


def model_loop(
    modules: Modules | None, phases: Phases | None, ops: Ops | None, trees: CallTrees | None
) -> ModelLoop | None:
    """The outermost module if it is called in a loop; else the layer that is. The layer also if its
    loop goes through what needs no other's result and takes longer."""
    if phases is None:
        return None
    lines = [x for x in ops.lines if x.phase in ("forward", "loss")] if ops else []
    repeated = [x for x in lines if x.phase == "forward" and x.repeated >= MIN_MODEL_CALLS]
    backwards = max(1.0, phases.counts.get("backward", 0.0))
    found = _outermost(modules, lines, repeated, backwards)
    layer = _layer(lines, repeated, backwards, trees) if repeated else None
    if found is None or layer is None:
        return found or layer
    apart = layer.series > 1 and layer.looped and _elapsed(layer) > _elapsed(found)
    return layer if apart else found


def _elapsed(loop: ModelLoop) -> float:
    return sum(line.elapsed_ns for line in loop.lines)


def _outermost(
    modules: Modules | None, lines: list[OpLine], repeated: list[OpLine], backwards: float
) -> ModelLoop | None:
    models = [m for m in (modules.modules if modules else ()) if m.parameters and not m.is_loss]
    most = max(models, key=lambda m: m.calls_per_step, default=None)
    each = most.calls_per_step / backwards if most else 0.0
    if most is None or each < MIN_MODEL_CALLS:
        return None
    turns = max((x.turns for x in lines if x.phase == "forward"), default=0.0)
    inside = tuple(x for x in lines if x.turns >= MAJORITY_FRAC * turns)
    busiest = max((x for x in inside if x.looped_at), key=lambda x: x.calls, default=None)
    # A turn is a call of any module, and the loop may go through several.
    called = sum(
        m.calls_per_step for m in models if m.calls_per_step / backwards >= MIN_MODEL_CALLS
    )
    weighted = [x for x in inside if x.repeated]
    return ModelLoop(
        most.name,
        (busiest.looped_at if busiest else None) or most.trained_at or most.evaluated_at,
        most.calls_per_step,
        each,
        inside,
        turns * most.calls_per_step / max(called, most.calls_per_step),
        bool(weighted) and all(x.one_row for x in weighted),
        busiest.series if busiest else 0.0,
    )


def _layer(
    lines: list[OpLine], repeated: list[OpLine], backwards: float, trees: CallTrees | None
) -> ModelLoop:
    worst = max(repeated, key=lambda x: x.elapsed_ns)
    layers = sorted(worst.names.keys() & LAYERS | worst.names.keys() & SEQUENCES.keys())
    name = layers[0] if layers else max(worst.names, key=lambda x: worst.names[x], default="")
    functions = {(x.at.file, x.at.function) for x in repeated}
    series = 1.0 if any(_chains(x, worst) for x in repeated) else worst.series
    looped = {worst.looped_at.spot} if worst.looped_at and series > 1 else set()
    below = looped | lines_below(looped, trees)
    inside = tuple(
        x
        for x in lines
        if x in repeated
        or x.at.spot in below
        or (
            x.phase == "forward"
            and (x.at.file, x.at.function) in functions
            and x.calls >= MAJORITY_FRAC * worst.repeated * x.turns
        )
    )
    # Not before every backward, perhaps.
    times = min(worst.repeated * backwards, max(worst.names.values(), default=math.inf))
    times = max(times, worst.repeated)
    one_row = all(x.one_row for x in repeated)
    return ModelLoop(
        name, worst.looped_at or worst.at, times, worst.repeated, inside, times, one_row,
        series, bool(looped),
    )  # fmt: skip


def _chains(line: OpLine, worst: OpLine) -> bool:
    """Whether it needs its own last result in each turn of the loop that repeats ``worst``: then
    the turns cannot be one, though some of their calls can."""
    together = line.looped_at is not None and line.looped_at == worst.looped_at
    return together and line.series == 1 and line.repeated >= MAJORITY_FRAC * worst.repeated
