"""Python loops that issue torch calls: their time, and how to say them as tensor expressions."""

from __future__ import annotations

import linecache
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tdiag.evidence.device import HostOps
from tdiag.evidence.kinds import Modules, OpLine, Ops, Phases
from tdiag.rules.base import where

# Asks for the shape, which the host knows: no value of the tensor is read.
NOT_VALUES = ("len",)
# A line that issues fewer calls in a turn is no loop over elements: a repeated term, a few scales.
MIN_LINE_CALLS = 8
# Calls with weights of their own, as torch.nn.functional names them: a loop over layers.
LAYERS = {
    "linear", "bilinear", "conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d",
    "conv_transpose3d", "batch_norm", "layer_norm", "group_norm", "instance_norm", "embedding",
    "lstm", "gru", "lstm_cell", "gru_cell", "rnn_tanh_cell", "multi_head_attention_forward",
}  # fmt: skip
# A vectorised loss of several terms makes two dozen calls; fewer than this are not worth merging.
MIN_CALLS = 32
# A built-in loss on one sample costs 4 (cross_entropy) to 77 (gaussian_nll_loss) plain torch.add
# calls, cosine_embedding_loss 45 (thirteen tried, torch 2.13, CPU): up to that, a call can be
# nothing but fixed costs; beyond, it works on data that one large call would have to work on too.
SMALL_CALL = 80
# A plain call's cost where this machine's own was not measured: 1.5 µs, as in the trial above.
PLAIN_CALL_NS = 1500
# What of a small call's time may yet be work on its data; ours, to keep the low end modest.
WORK_IN_SMALL_CALL_FRAC = 0.5


@dataclass(frozen=True)
class LoopTime:
    """What these lines cost per step. ``per_call_ns`` counts the forward side only."""

    calls: float
    grad_calls: float
    conversions: dict[str, float]
    forward_ns: float
    backward_ns: float

    @property
    def per_call_ns(self) -> float:
        return self.forward_ns / self.calls if self.calls else 0.0


def in_loss(line: OpLine, modules: Modules | None) -> bool:
    """The line ran in the loss region, or in the ``forward`` of a module that is a loss."""
    if line.phase != "forward" or modules is None:
        return line.phase == "loss"
    before = [
        module
        for module in modules.modules
        if module.at and module.at.file == line.at.file and module.at.line <= line.at.line
    ]
    nearest = max(before, key=lambda module: module.at.line if module.at else 0, default=None)
    return nearest is not None and nearest.is_loss


def value_loops(ops: Ops, modules: Modules | None) -> list[OpLine]:
    """Lines that loop over tensor values: all loops in the loss, and of the forward pass, where a
    loss may be computed, too, those of a function that reads values into Python in one."""
    loops = [x for x in ops.lines if x.in_loop and _again_and_again(x)]
    reading = {
        (line.at.file, line.at.function)
        for line in loops
        if line.phase == "forward"
        and sum(conversions([line]).values()) >= MIN_LINE_CALLS * line.turns
    }
    return [
        line
        for line in loops
        if in_loss(line, modules)
        or (
            line.phase == "forward"
            and (line.at.file, line.at.function) in reading
            and not LAYERS & line.names.keys()
        )
    ]


def _again_and_again(line: OpLine) -> bool:
    """One call as often as a loop over elements makes it: many different ones are a function of a
    library (``torch.distributions`` checks its arguments), or a long expression."""
    return max(line.names.values(), default=line.calls) >= MIN_LINE_CALLS * line.turns


def loop_time(
    lines: Sequence[OpLine],
    ops: Ops,
    phases: Phases,
    modules: Modules | None,
    host_ops: HostOps | None,
) -> LoopTime:
    """Clean time of these lines: their phases' clean time × their share of the calls' time there.

    Backward goes by what the traced sequence numbers say of each phase, else by the time of the
    calls that record gradients: a call that took long forward takes long backward.
    """
    forward = backward = 0.0
    traced = _traced_backward(host_ops)
    recorded = sum(_recording(line) for line in ops.lines)
    for phase in ("loss", "forward"):
        there = [line for line in ops.lines if _phase(line, modules) == phase]
        mine = [line for line in lines if _phase(line, modules) == phase]
        clean = phases.wall_ns.get(phase, 0.0)
        forward += clean * _share(mine, there, lambda line: line.elapsed_ns)
        of_phase = sum(map(_recording, there)) / recorded if recorded else 0.0
        if phase in traced:
            of_phase = traced[phase]
        backward += of_phase * _share(mine, there, _recording)
    return LoopTime(
        calls=sum(line.calls for line in lines),
        grad_calls=sum(line.grad_calls for line in lines),
        conversions=conversions(lines),
        forward_ns=forward,
        backward_ns=phases.wall_ns.get("backward", 0.0) * backward,
    )


def conversions(lines: Sequence[OpLine]) -> dict[str, float]:
    """How often these lines read tensor values into Python, per step, by kind."""
    made: Counter[str] = Counter()
    for line in lines:
        made.update({k: n for k, n in line.conversions.items() if k not in NOT_VALUES})
    return dict(made)


def _traced_backward(host_ops: HostOps | None) -> dict[str, float]:
    """Shares of forward and loss in the backward whose forward op was traced to either."""
    ns = host_ops.backward_of if host_ops else {}
    known = {phase: ns[phase] for phase in ("forward", "loss") if phase in ns}
    total = sum(known.values())
    return {phase: value / total for phase, value in known.items()} if total else {}


def _phase(line: OpLine, modules: Modules | None) -> str:
    return "loss" if in_loss(line, modules) else line.phase


def _share(
    mine: Sequence[OpLine], all_of_them: Sequence[OpLine], cost: Callable[[OpLine], float]
) -> float:
    total = sum(cost(line) for line in all_of_them)
    return sum(cost(line) for line in mine) / total if total else 0.0


def _recording(line: OpLine) -> float:
    """Time of the calls of this line that record gradients, ns per step."""
    return line.elapsed_ns * line.grad_calls / line.calls if line.calls else 0.0


# What the text of a loop line tells of the built-in that says it in one call; the first that fits.
_BUILT_IN = (
    (r"cosine", "torch.nn.functional.cosine_similarity(a, b, dim=-1) over the whole batch"),
    (r"\b(dist|cdist|norm|pairwise)", "torch.cdist(a, b) for all pairs at once"),
    (
        r"\b(triplet|margin|hinge|clamp|max\()",
        "the margin over whole rows, (margin + d).clamp(min=0)",
    ),
)
# Compares the same sequence at two places: ``labels[i] == labels[j]``, converted or not.
_SAME_LABEL = re.compile(r"([\w.]+)\[\w+\]\)?(?:\.item\(\))?\s*[!=]=\s*(?:\w+\()?\1\[\w+\]")
_READS = {"item", "float", "int", "tolist", "numpy", "cpu"}
_SELECTS = {"nonzero", "masked_select", "unique"}
# More ways at once would leave the reader to find out which of them is meant.
MOST_WAYS = 2


def rewriting(lines: Sequence[OpLine]) -> str:
    """How to say these lines' loop without a loop, from their text and the conversions they make.

    Names the line that takes longest.
    """
    worst = max(lines, key=lambda line: line.elapsed_ns)
    made = conversions(lines)
    counts = [f"{sum(line.calls for line in lines):.0f} torch calls"]
    counts += [f"{times:.0f} × {kind}()" for kind, times in sorted(made.items())]
    return (
        f"Replace the loop{where(worst.at)} ({', '.join(counts)} a step) by one expression over"
        f" whole tensors: {'; '.join(_expressions(lines, set(made)))}."
    )


def _expressions(lines: Sequence[OpLine], conversions: set[str]) -> list[str]:
    """What fits the functions and conversions seen on these lines, the most telling first."""
    text = "".join(linecache.getline(line.at.file, line.at.line) for line in lines)
    ways = [way for pattern, way in _BUILT_IN if re.search(pattern, text)][:1]
    by_value = "bool" in conversions or (conversions & _READS and re.search(r"\bif\b", text))
    if same := _SAME_LABEL.search(text):
        ways.insert(0, f"the mask `{same[1]}[:, None] == {same[1]}[None, :]` instead of the branch")
    elif by_value:
        ways.append("torch.where(condition, a, b), or a 0/1 mask as weight, instead of the branch")
    elif conversions & _SELECTS:
        ways.append("a mask as weight instead of selecting elements")
    if conversions & _READS:
        ways.append("keep the values as tensors and reduce them once, .item() only for logging")
    broadcast = "index with broadcasting (x[:, None] - y[None, :]) and reduce with .sum(dim)"
    return ways[:MOST_WAYS] or [broadcast]
