"""The torch calls in forward and backward: their fixed cost, and the least time for their work."""

from __future__ import annotations

import sys
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from tdiag.evidence.roofline import OpWork, Roof, Work
from tdiag.evidence.steps import Phases
from tdiag.evidence.torch_ops import Dispatch, OpLine, Ops
from tdiag.model.place import Place
from tdiag.model.threshold import MAJORITY_FRAC, NOTICEABLE_FRAC, Threshold
from tdiag.rules.base import Abstain
from tdiag.rules.call_parts import BackwardShare, backward_share
from tdiag.rules.syntax import function_at

FIXED_COST_FACTOR = Threshold(
    6,
    "times a torch.add with gradients",
    "Measured with torch 2.13 on a CPU: forward and backward of Linear, Conv2d, LayerNorm,"
    " BatchNorm2d, ReLU, GELU and Softmax on one element took 1.8 to 6.2 times as long, with busy"
    " neighbours 1.9 to 9.3, their median 6.1; up to this factor they can be fixed cost alone"
    " (benchmarks/rule_constants.py fixed_cost.FIXED_COST_FACTOR).",
)
NO_OVERHEAD_NS = Threshold(
    100_000,
    "ns per call",
    "A one-element layer with its backward takes up to 42 µs (FIXED_COST_FACTOR × 7 µs); doubled"
    " and rounded up for slower cores. Longer calls do work on any machine.",
)
GRAD_CALL_MOST = Threshold(
    8,
    "times a torch.add without gradients",
    "Measured with torch 2.13 on a CPU: 4.5 times with gradients and backward, 30 times with"
    " anomaly detection on, which is no fixed cost of torch (benchmarks/rule_constants.py"
    " fixed_cost.GRAD_CALL_MOST).",
)
LITTLE_WORK_FRAC = Threshold(
    0.2,
    "of their time",
    "By arithmetic: a step is called healthy from 0.4 of what the machine reaches"
    " (diagnose.efficiency.EFFICIENT_FRAC); calls that reach half of that take at most half their"
    " time once they are one call that is healthy.",
)
BACKWARD_WORK = Threshold(
    2, "times the forward pass", "By arithmetic: the backward of a product is two such products."
)

# Calls that copy whole tensors and compute nothing, and calls that only look at one differently.
COPIES = frozenset(
    {"cat", "concat", "concatenate", "stack", "hstack", "vstack", "clone", "contiguous", "copy_",
     "roll", "flip", "repeat", "tile", "repeat_interleave", "pad"}
)  # fmt: skip
VIEWS = frozenset(
    {"__getitem__", "__setitem__", "view", "reshape", "permute", "transpose", "t", "T", "mT",
     "squeeze", "unsqueeze", "expand", "flatten", "detach", "narrow", "select", "chunk", "split",
     "unbind", "size", "dim", "numel"}
)  # fmt: skip


@dataclass(frozen=True)
class FixedCost:
    """Per step: torch calls of the forward pass, their fixed cost and the time spent, ns.

    ``least_ns``, ``most_ns``: the time spent if their backward takes as little, or as long, as it
    may (``share``)."""

    calls: float
    dispatch_ns: float
    spent_ns: float
    least_ns: float
    most_ns: float
    share: BackwardShare

    @property
    def work(self) -> float:
        """Time spent ÷ fixed cost; 0 without calls."""
        return self.spent_ns / self.dispatch_ns if self.dispatch_ns else 0.0

    def least_saved(self, kept: float, best: float | None) -> float:
        """What is saved at least if ``kept`` of these calls, 0..1, do the work of all: the fixed
        cost of the others; or, if ``best`` is known, the time of the others without the least time
        for the work ÷ :data:`LITTLE_WORK_FRAC`."""
        fixed = self.dispatch_ns * (1 - kept)
        if best is None:
            return fixed
        return max(fixed, self.least_ns * (1 - kept) - best / LITTLE_WORK_FRAC)

    def does_little(self, best: float | None, frac: float = LITTLE_WORK_FRAC) -> bool:
        """Whether ``best``, the least time for their work, ns, is at most ``frac`` of the calls'
        time; False if it is unknown."""
        return best is not None and best <= frac * self.spent_ns

    def small(self, best: float | None, frac: float = LITTLE_WORK_FRAC) -> bool:
        """Whether fixed cost may be all or most of the time: all, if the time is within the range
        of fixed costs; most, if the calls are short and do little work."""
        if self.work <= FIXED_COST_FACTOR:
            return True
        return self.spent_ns <= NO_OVERHEAD_NS * self.calls and self.does_little(best, frac)


def merged_work(best: float | None) -> str:
    """What ``least_saved`` leaves besides fixed costs, for an explanation."""
    if best is None:
        return ""
    return f", and their work takes {1 / LITTLE_WORK_FRAC:.0f} times its least time"


def fixed_cost(
    phases: Phases | None,
    ops: Ops | None,
    dispatch: Dispatch | None,
    apart: Collection[OpLine] = (),
) -> FixedCost:
    """Forward and backward without the loss. ``apart``: forward lines that another rule handles.
    Abstains if a measurement is missing."""
    if phases is None:
        raise Abstain("the phases of the clean steps were not measured")
    if ops is None:
        raise Abstain("torch calls were not counted (window ops)")
    if dispatch is None:
        raise Abstain("the fixed cost of a call was not measured on this machine")
    mine = [line for line in ops.lines if line.phase == "forward" and line not in apart]
    return cost_of(mine, phases, ops, dispatch)


def fixed_cost_of_small(
    phases: Phases, ops: Ops, dispatch: Dispatch, apart: Collection[OpLine] = ()
) -> FixedCost:
    """The same for lines whose calls may be fixed cost alone: next to a few large calls, the
    average over all lines would hide a loop of small ones."""
    small = [
        line
        for line in ops.lines
        if line.phase == "forward"
        and line not in apart
        and cost_of([line], phases, ops, dispatch).work <= FIXED_COST_FACTOR
    ]
    return cost_of(small, phases, ops, dispatch)


def cost_of(mine: Sequence[OpLine], phases: Phases, ops: Ops, dispatch: Dispatch) -> FixedCost:
    """The fixed cost of these lines. A phase's time is divided among its lines by their own time,
    and backward's as :func:`~tdiag.rules.call_parts.backward_share` tells."""
    backward = phases.wall_ns.get("backward", 0.0)
    share = backward_share([x for x in mine if x.phase != "backward"], ops, lambda x: x.elapsed_ns)
    spent = backward * share.likely
    for phase in {line.phase for line in mine}:
        all_of_it = sum(line.elapsed_ns for line in ops.lines if line.phase == phase) or 1.0
        its = sum(line.elapsed_ns for line in mine if line.phase == phase)
        spent += phases.wall_ns.get(phase, 0.0) * its / all_of_it
    return FixedCost(
        calls=sum(line.calls for line in mine),
        dispatch_ns=sum(_cost(line, dispatch) for line in mine),
        spent_ns=spent,
        least_ns=spent - backward * (share.likely - share.least),
        most_ns=spent + backward * (share.most - share.likely),
        share=share,
    )


def best_ns(mine: Sequence[OpLine], work: Work | None, roof: Roof | None) -> float | None:
    """The least time that this machine needs for the traced work of the functions of these lines,
    backward included, ns per step; if the trace has no places, for all ops that ran as often as
    these lines' calls, which is no less. None where it is not known."""
    if work is None or roof is None:
        return None
    if not any(op.at for op in work.ops):
        often = min((max(line.names.values(), default=line.calls) for line in mine), default=0.0)
        rarest = often * (1 - NOTICEABLE_FRAC)
        alike = [_best_ns(op, roof) for op in work.ops if op.count >= rarest]
        return sum(alike) if alike else None
    functions = {(line.at.file, line.at.function, _lines_of(line.at)) for line in mine}
    found = [
        _best_ns(op, roof)
        for op in work.ops
        if (at := op.at)
        and not op.backward
        and any(
            _is(file, name, at) and (not at.line or at.line in lines)
            for file, name, lines in functions
        )
    ]
    return sum(found) * (1 + BACKWARD_WORK) if found else None


def _lines_of(at: Place) -> range:
    """The lines of the function around this one, its decorators included: many have the name
    ``forward``. Any line where the source is unknown."""
    around = function_at(at)
    if around is None:
        return range(sys.maxsize)
    first = min([around.lineno, *(x.lineno for x in around.decorator_list)])
    return range(first, (around.end_lineno or first) + 1)


def products_ns(mine: Sequence[OpLine], work: Work | None, roof: Roof | None) -> float:
    """The least time that this machine needs for the matrix products and convolutions of exactly
    these lines, backward included, ns per step: merging the calls saves none of it. Those whose
    line the trace does not know are left out."""
    if work is None or roof is None:
        return 0.0
    spots = {line.at.spot for line in mine}
    return sum(roof.best_ns(op) for op in work.ops if op.flops and op.at and op.at.spot in spots)


def best_of_step_ns(work: Work | None, roof: Roof | None) -> float | None:
    """The same for all work of the traced step, without doubling it for backward, which the trace
    contains."""
    return sum(_best_ns(op, roof) for op in work.ops) if work and roof else None


def unknown_work_ns(work: Work, roof: Roof) -> float:
    """Time of long calls beyond their bytes, ns per step, whose arithmetic the roof does not know,
    such as sorting or drawing random numbers."""
    return sum(max(0.0, _best_ns(op, roof) - roof.best_ns(op)) for op in work.ops)


def _best_ns(op: OpWork, roof: Roof) -> float:
    """A call that takes longer than any overhead, and whose arithmetic is not counted, works all
    the time."""
    unknown = not op.flops and op.spent_ns > NO_OVERHEAD_NS * op.count
    return op.spent_ns if unknown else roof.best_ns(op)


def moves_memory(line: OpLine, dispatch: Dispatch) -> bool:
    """Whether most of the line's calls copy tensors, and take longer than calls on no data. A join
    of many parameters takes long for their number."""
    copies = sum(n for name, n in line.names.items() if name in COPIES)
    work = sum(n for name, n in line.names.items() if name not in VIEWS)
    slow = line.elapsed_ns > FIXED_COST_FACTOR * dispatch.op_ns * line.calls
    return copies > MAJORITY_FRAC * work and slow and not line.joined


def _is(file: str, function: str, at: Place) -> bool:
    """A trace may name a file relative to the working directory."""
    return function == at.function and (file == at.file or file.endswith(f"/{at.file}"))


def _cost(line: OpLine, dispatch: Dispatch) -> float:
    plain = line.calls - line.grad_calls
    grad_op_ns = min(dispatch.grad_op_ns, GRAD_CALL_MOST * dispatch.op_ns)
    return plain * dispatch.op_ns + line.grad_calls * grad_op_ns
