"""Many small layers take the same input

## What it measures
Lines of the forward pass that call layers with different weights on one and the same tensor or on
slices of it of one shape: an output layer for each target, a list of heads, a layer for each
channel. Also the lines of one function that call four layers or more on one tensor, such as the
gates of a cell. The time of these calls and of their backward is compared with the work that their
shapes need on this machine; fewer than eight layers must reach less than what is called healthy.

## Why it is slow
Each call costs a few microseconds of Python and dispatch, again in the backward pass, and the
optimizer updates each layer's parameters separately. Narrow matrices leave most of the processor
idle.

## What to do
Make one layer as wide as all of them together, call it once, and split its result. If each takes
its own slice: stack their weights, and multiply all slices with them in one `torch.einsum` or
`torch.bmm`.

## How the gain is computed
From the calls' time with their backward: low end the least and high end the most that one layer
instead of many saved in measurements (16 to 256 linear layers; four layers or convolutions), but
not the time that the products need at best. At the high end, if backward was not measured by line,
it may take four times their share. The updates of their parameters go, too, by their share in the
optimizer's tensors. Low end 0 if the calls do much work.

## When this advice is wrong
If the layers differ in kind, or are trained at different times.
"""

from __future__ import annotations

from tdiag.evidence.roofline import Roof, Work
from tdiag.evidence.steps import Budget, Phases
from tdiag.evidence.store import Evidence
from tdiag.evidence.torch_ops import Dispatch, OpLine, Ops
from tdiag.evidence.training import Optimizers
from tdiag.model.diagnosis import Fix
from tdiag.model.threshold import Threshold
from tdiag.rules.base import Abstain, Found, Gain, count, ns, where
from tdiag.rules.examples import budget, op_line, ops, phases
from tdiag.rules.fixed_cost import FIXED_COST_FACTOR, best_ns, cost_of, products_ns
from tdiag.rules.loops import MIN_LINE_CALLS
from tdiag.units import duration, percent

CODE = "TD719"
NAME = "layers-share-an-input"
CLASS = "overhead"
UNTRIED = "the layers must be written as one"
BY_ISSUE = True

MERGED_LOW = Threshold(
    1.85,
    "times as fast",
    "Measured, one linear layer instead of 16 to 256 narrow ones on the same input, with backward,"
    " torch 2.13, one core: the least, 16 of 32 outputs (benchmarks/rule_constants.py td719).",
)
MERGED_HIGH = Threshold(
    53,
    "times as fast",
    "The same measurement: the most, 256 of one output (benchmarks/rule_constants.py td719).",
)

FEW_LOW = Threshold(
    1.05,
    "times as fast",
    "Measured, one linear layer or convolution instead of four on the same input, with backward,"
    " torch 2.13, one core: the least (benchmarks/rule_constants.py td719).",
)
FEW_HIGH = Threshold(
    2.4, "times as fast", "The same measurement: the most (benchmarks/rule_constants.py td719)."
)
FEW_LAYERS = Threshold(
    4,
    "layers on one input",
    "By definition: an LSTM's cell has four gates. Queries, keys and values are three, and often"
    " kept apart on purpose.",
)

FEW_EFFICIENT_FRAC = Threshold(
    0.4,
    "of their time",
    "By arithmetic: a step is called healthy from 0.4 of what the machine reaches"
    " (diagnose.efficiency.EFFICIENT_FRAC).",
)


def check(
    budget: Budget,
    phases: Phases,
    ops: Ops,
    dispatch: Dispatch | None,
    optimizers: Optimizers | None,
    work: Work | None,
    roof: Roof | None,
) -> Found | None:
    shared = [x for x in ops.lines if x.phase == "forward" and x.shared >= FEW_LAYERS]
    many = [x for x in shared if x.shared >= MIN_LINE_CALLS]
    if not (lines := many or shared):
        return None
    if dispatch is None:
        raise Abstain("the fixed cost of a call was not measured on this machine")
    cost = cost_of(lines, phases, ops, dispatch)
    best = best_ns(lines, work, roof)
    little = cost.does_little(best)
    if not many and not cost.does_little(best, FEW_EFFICIENT_FRAC):
        return None
    sure = little or cost.work <= FIXED_COST_FACTOR
    least, most = (MERGED_LOW, MERGED_HIGH) if many else (FEW_LOW, FEW_HIGH)
    worst = max(lines, key=lambda line: line.elapsed_ns)
    at = worst.shared_at or worst.at
    layers, merged = worst.shared, 1 - 1 / worst.shared
    updates = phases.wall_ns.get("optimizer", 0.0) * _tensors(lines, optimizers) * merged
    saved = cost.most_ns * min(merged, 1 - 1 / most)
    high = min(saved, max(0.0, cost.most_ns - products_ns(lines, work, roof))) + updates
    return Found(
        summary=(
            f"{layers} layers are called one after another on one input, or on slices of it,"
            f"{where(at)}: {duration(cost.spent_ns)} per step with their backward,"
            f" {percent(cost.spent_ns / budget.step_ns)} of the step."
        ),
        evidence=(
            count("layers that take one input", layers, "ops"),
            ns("their calls and the backward", cost.spent_ns, "baseline"),
            ns("fixed cost of these calls on this machine", cost.dispatch_ns, "probe"),
            *(() if best is None else (ns("their work at best", best, "trace"),)),
        ),
        fix=Fix(
            f"Replace the {layers} layers{where(at)} by one that is as wide as all of them,"
            " call it once, and split its result. If each takes its own slice, multiply all slices"
            " with their stacked weights in one torch.einsum. Gates that add the results for two"
            " inputs can take both, joined by torch.cat.",
            "review",
            action=f"Merge {layers} layers of one input into one",
            code="self.heads = torch.nn.Linear(width, heads * outputs)  # instead of a ModuleList\n"
            "results = self.heads(x).unflatten(-1, (heads, outputs))",
        ),
        gain=Gain(
            min(cost.spent_ns * (1 - 1 / least), high) if sure else 0.0,
            high,
            "high end: the most that one layer instead of many saved in measurements, with"
            f" {cost.share.at_most}, but not the time that their products need at best, and the"
            " updates of their parameters; low end: "
            + ("the least that it saved." if sure else "nothing, if the calls work efficiently."),
            ("forward", "backward", "optimizer"),
        ),
        at=at,
        cls=CLASS if many else "compute",  # four calls cost little beside their products
    )


def _tensors(lines: list[OpLine], optimizers: Optimizers | None) -> float:
    """The share of these layers' parameters in the tensors that are updated."""
    updated = sum(o.tensors for o in optimizers.optimizers) if optimizers else 0
    mine: dict[tuple[str, str], int] = {}  # lines of a function share its layers
    for line in lines:
        function = line.at.file, line.at.function
        mine[function] = max(mine.get(function, 0), line.shared_tensors)
    return min(1.0, sum(mine.values()) / updated) if updated else 0.0


def fires() -> Evidence:
    """Forty heads."""
    return _heads(40)


def clear() -> Evidence:
    """Queries, keys and values."""
    return _heads(3)


def _heads(number: int) -> Evidence:
    line = op_line(31, "forward", 40, grad_calls=40.0, names={"linear": 40.0}, shared=number)
    step = budget(forward=1, loss=0.1, backward=1.5, optimizer=0.6)
    clean = phases(forward=1, loss=0.1, backward=1.5, optimizer=0.6)
    return Evidence().add(step, clean, ops(line), Dispatch(op_ns=1500, grad_op_ns=7000))
