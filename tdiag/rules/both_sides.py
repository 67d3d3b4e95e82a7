"""Functions that the training loop calls before the forward and again later in the same step: a
schedule that is looked up, a clock, a counter. What makes the batch is called before it alone."""

from __future__ import annotations

from collections import defaultdict

from tdiag.evidence.sampled import CallTrees
from tdiag.evidence.torch_ops import Ops
from tdiag.model.place import Spot
from tdiag.model.threshold import Threshold
from tdiag.rules.loop_lines import FunctionKey, function_key, stack_up, step_spans

LEAST_FRAC = Threshold(
    0.2,
    "of the function's samples, on each side",
    "Heuristic: less may be a helper that one other place calls as well.",
)


def on_both_sides(ops: Ops | None, trees: CallTrees | None) -> set[Spot]:
    """The lines of such functions, by the sampled stacks."""
    if ops is None or trees is None:
        return set()
    frames = trees.training
    spans = step_spans(ops, frames)
    before: dict[FunctionKey, float] = defaultdict(float)
    later: dict[FunctionKey, float] = defaultdict(float)
    spots: dict[FunctionKey, set[Spot]] = defaultdict(set)
    for number, frame in enumerate(frames):
        function = function_key(frame.file, frame.name)
        if not frame.user or function in spans:
            continue
        spots[function].add((frame.file, frame.line))
        above = next((call for call in stack_up(number, frames) if call[0] in spans), None)
        if above is not None:
            first, _ = spans[above[0]]
            if above[1] < first:
                before[function] += frame.frac
            elif above[1] > first:
                later[function] += frame.frac
    least = {x: min(before[x], later[x]) / (before[x] + later[x]) for x in before if x in later}
    return {spot for x, frac in least.items() if frac >= LEAST_FRAC for spot in spots[x]}
