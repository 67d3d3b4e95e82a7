"""Python loops that issue torch calls, and their time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from tdiag.evidence.sampled import CallTrees, Stacks
from tdiag.evidence.steps import Phases
from tdiag.evidence.torch_ops import HostOps, OpLine, Ops
from tdiag.evidence.training import Modules
from tdiag.model.place import Place, Spot
from tdiag.model.threshold import Threshold
from tdiag.rules.call_parts import backward_share
from tdiag.rules.callers import lines_below
from tdiag.rules.hooks import hooks_of, in_hook
from tdiag.rules.loop_heads import in_a_loop, loop_head
from tdiag.rules.loop_lines import LOSS_NAME
from tdiag.rules.syntax import function_at
from tdiag.rules.thresholds import MIN_SAMPLES

# Conversions that do not read a value: the host knows a tensor's shape.
NOT_VALUES = ("len",)
# Those whose result is a tensor, of a size that depends on values (torch's documentation).
SELECTING = {"nonzero", "masked_select", "unique"}
# Calls with their own weights, as torch.nn.functional names them: a loop over layers.
LAYERS = {
    "linear", "bilinear", "conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d",
    "conv_transpose3d", "batch_norm", "layer_norm", "group_norm", "instance_norm", "embedding",
    "lstm", "gru", "lstm_cell", "gru_cell", "rnn_tanh_cell", "multi_head_attention_forward",
}  # fmt: skip
MIN_LINE_CALLS = Threshold(
    8,
    "calls of a line in one turn",
    "Heuristic: fewer are a repeated term or a few scales, not a loop over elements.",
)
MIN_CALLS = Threshold(
    32,
    "torch calls per step",
    "Heuristic: a vectorised loss of several terms makes two dozen calls, so fewer are not worth"
    " merging.",
)
SMALL_CALL = Threshold(
    80,
    "plain torch.add calls",
    "A built-in loss on one sample cost 4 (cross_entropy) to 77 (gaussian_nll_loss) plain"
    " torch.add calls (thirteen losses measured, torch 2.13, CPU). A call of up to 80 can be"
    " fixed cost alone (benchmarks/rule_constants.py loops.SMALL_CALL).",
)
PLAIN_CALL_NS = Threshold(
    1500,
    "ns",
    "A plain torch.add in the measurement of SMALL_CALL, 2,100 to 2,800 ns next to busy"
    " neighbours; used where this machine's own call cost was not measured"
    " (benchmarks/rule_constants.py loops.PLAIN_CALL_NS).",
)
WORK_IN_SMALL_CALL_FRAC = Threshold(
    0.5,
    "of a small call's time",
    "Heuristic: half of a small call's time may be work on its data, which keeps the low end"
    " modest.",
)


@dataclass(frozen=True)
class LoopTime:
    """Cost of these lines per step. ``per_call_ns`` counts the forward side only."""

    calls: float
    grad_calls: float
    conversions: dict[str, float]
    forward_ns: float
    backward_ns: float

    @property
    def per_call_ns(self) -> float:
        return self.forward_ns / self.calls if self.calls else 0.0


def in_loss(line: OpLine, modules: Modules | None) -> bool:
    """Whether the line ran in the loss region, in the ``forward`` of a loss module, or calls no
    layer in a function named as a loss, as a GAN's critic has it before another forward."""
    named = modules is not None and line.phase == "forward" and _named_as_loss(line)
    return named or _phase(line, modules) == "loss"


def _named_as_loss(line: OpLine) -> bool:
    name = line.at.function.rpartition(".")[2]
    return LOSS_NAME.search(name) is not None and not LAYERS & line.names.keys()


def value_loops(
    ops: Ops,
    modules: Modules | None,
    trees: CallTrees | None,
    logging: Collection[Spot] = (),
) -> list[OpLine]:
    """Lines that loop over tensor values: every loop in the loss, and loops of forward in functions
    that read tensor values and record gradients in a loop (a loss may be computed there; without
    gradients it is the model's mask or index). Loops over layers, hooks and lines that write logs
    are left out, and in a module's ``forward`` what others call in a loop, and what layers follow:
    that is the model."""
    hooks, followed = hooks_of(trees), _before_layers(ops, trees)
    loops = [
        x
        for x in ops.lines
        if x.in_loop and _again_and_again(x) and not in_hook(x, hooks) and x.at.spot not in logging
    ]
    reading = {
        (line.at.file, line.at.function)
        for line in loops
        if line.phase == "forward" and _reads(line) >= MIN_LINE_CALLS * line.turns
    }
    recording = {(line.at.file, line.at.function) for line in loops if line.grad_calls}
    over_layers = {_head(x) for x in ops.lines if x.phase == "forward" and LAYERS & x.names.keys()}
    return [
        line
        for line in loops
        if in_loss(line, modules)
        or (
            line.phase == "forward"
            and (line.at.file, line.at.function) in reading & recording
            and not LAYERS & line.names.keys()
            and not _of_a_layer(line)
            and line.at.spot not in followed
            and (_head(line) is None or _head(line) not in over_layers)
        )
    ]


def _before_layers(ops: Ops, trees: CallTrees | None) -> set[Spot]:
    """The lines of a module's ``forward`` above one that calls layers, and the lines below them."""
    frames = [x for x in (trees.training if trees else ()) if x.user]
    spots = [x.at.spot for x in ops.lines] + [(x.file, x.line) for x in frames]
    above: set[Spot] = set()
    for x in ops.lines:
        if x.phase != "forward" or not x.grad_calls or not LAYERS & x.names.keys():
            continue
        function = function_at(x.at)
        if function is not None and function.name == "forward":
            lines = range(function.lineno, x.at.line)
            above |= {(file, n) for file, n in spots if file == x.at.file and n in lines}
    return above | lines_below(above, trees)


def _of_a_layer(line: OpLine) -> bool:
    """Whether the line is in a ``forward`` that has no loop around it: one layer of several."""
    return line.at.function.rpartition(".")[2] == "forward" and not in_a_loop(line.at)


def _head(line: OpLine) -> tuple[str, int] | None:
    """The statement of the loop around the line."""
    head = loop_head(line.at)
    return head.spot if head else None


def python_inside(
    lines: Sequence[OpLine], ops: Ops, stacks: Stacks | None, trees: CallTrees | None
) -> Place | None:
    """The user's line called by these lines that makes no torch call itself and has most samples,
    if such lines have most of the samples of both: then the loop's time is Python's."""
    if stacks is None or trees is None or stacks.samples < MIN_SAMPLES:
        return None
    mine = {x.at.spot for x in lines}
    calling = {x.at.spot for x in ops.lines}
    below = lines_below(mine, trees) - calling
    python = [x for x in stacks.training if x.at.spot in below]
    issuing = sum(x.self_frac for x in stacks.training if x.at.spot in mine)
    most = max(python, key=lambda x: x.self_frac, default=None)
    return most.at if most and sum(x.self_frac for x in python) > issuing else None


def _again_and_again(line: OpLine) -> bool:
    """Whether one torch function is called often enough for a loop over elements. Many different
    calls suggest a library function (``torch.distributions`` checks its arguments) or a long
    expression."""
    return max(line.names.values(), default=line.calls) >= MIN_LINE_CALLS * line.turns


def loop_time(
    lines: Sequence[OpLine],
    ops: Ops,
    phases: Phases,
    modules: Modules | None,
    host_ops: HostOps | None,
) -> LoopTime:
    """Clean time of these lines: clean time of their phase × their share of its calls' time.

    Backward is split by its time by line; where that was not measured, over phases by the traced
    sequence numbers, and without a trace by the time of the calls that record gradients (a call
    that is slow forward is slow backward).
    """
    forward = backward = 0.0
    traced = _traced_backward(host_ops)
    recorded = sum(line.recording_ns for line in ops.lines)
    for phase in ("loss", "forward"):
        there = [line for line in ops.lines if _phase(line, modules) == phase]
        mine = [line for line in lines if _phase(line, modules) == phase]
        clean = phases.wall_ns.get(phase, 0.0)
        forward += clean * _share(mine, there, lambda line: line.elapsed_ns)
        of_phase = sum(line.recording_ns for line in there) / recorded if recorded else 0.0
        if phase in traced:
            of_phase = traced[phase]
        if ops.measured_backward_ns:
            backward += backward_share(mine, ops, lambda line: line.elapsed_ns).likely
        else:
            backward += of_phase * _share(mine, there, lambda line: line.recording_ns)
    return LoopTime(
        calls=sum(line.calls for line in lines),
        grad_calls=sum(line.grad_calls for line in lines),
        conversions=conversions(lines),
        forward_ns=forward,
        backward_ns=phases.wall_ns.get("backward", 0.0) * backward,
    )


def conversions(lines: Sequence[OpLine]) -> dict[str, float]:
    """Reads of tensor values into Python by these lines, per step, by kind."""
    made: Counter[str] = Counter()
    for line in lines:
        made.update({k: n for k, n in line.conversions.items() if k not in NOT_VALUES})
    return dict(made)


def _reads(line: OpLine) -> float:
    """Values that it makes numbers of Python per step. Rows picked by a mask stay tensors."""
    return sum(n for kind, n in conversions([line]).items() if kind not in SELECTING)


def _traced_backward(host_ops: HostOps | None) -> dict[str, float]:
    """The shares of forward and loss in the backward time whose forward op was traced."""
    ns = host_ops.backward_of if host_ops else {}
    known = {phase: ns[phase] for phase in ("forward", "loss") if phase in ns}
    total = sum(known.values())
    return {phase: value / total for phase, value in known.items()} if total else {}


def _phase(line: OpLine, modules: Modules | None) -> str:
    """The phase that has its clean time."""
    if line.phase != "forward" or modules is None:
        return line.phase
    before = [
        module
        for module in modules.modules
        if module.at and module.at.file == line.at.file and module.at.line <= line.at.line
    ]
    nearest = max(before, key=lambda module: module.at.line if module.at else 0, default=None)
    return "loss" if nearest is not None and nearest.is_loss else "forward"


def _share(
    mine: Sequence[OpLine], all_of_them: Sequence[OpLine], cost: Callable[[OpLine], float]
) -> float:
    total = sum(cost(line) for line in all_of_them)
    return sum(cost(line) for line in mine) / total if total else 0.0
