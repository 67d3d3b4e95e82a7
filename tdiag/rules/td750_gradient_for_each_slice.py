"""Backward makes a whole gradient for each slice

## What it measures
In the traced backward of one function: how often a tensor of one size is filled with zeros, and
how often such a tensor is added to another. Both belong to slices (`x[:, t]`, `x[:, numbers]`) that
are taken one by one from a larger tensor, most of them by the function's own lines. On a CPU their
time is scaled by clean step ÷ traced step; on a device it is that of their kernels.

## Why it is slow
The gradient of a slice is a tensor as large as the whole, with zeros around the slice, and all
these are added up. For n slices that is n times the work of one.

## What to do
Take all slices in one call: `for part in x.unbind(1)` instead of `x[:, t]` for each t,
`x.split(...)` or `x.chunk(...)` for ranges. Where each slice has rows of its own, pick all of them
by one `index_select` and split the result. Its backward writes the whole gradient once. Better
still where the loop's work can be done for all slices in one call.

## How the gain is computed
From the time of the filling and adding, less what one whole gradient for each tensor takes: low
end a little less than `unbind` saved in measurements; high end with room for the loop's own calls.
With a device, high end, the host need not issue these kernels either.

## When this advice is wrong
A loop that changes `x` in place between two slices cannot take them at once. If the slices overlap,
some adding is left.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from operator import itemgetter
from typing import NamedTuple

from tdiag.evidence.device import DeviceTime
from tdiag.evidence.roofline import ADDS, FILLS, OpWork, Work
from tdiag.evidence.steps import Budget, TracedSteps
from tdiag.evidence.store import Evidence
from tdiag.evidence.torch_ops import TAKING, Ops
from tdiag.model.diagnosis import Fix
from tdiag.model.place import Place
from tdiag.model.threshold import MAJORITY_FRAC, Threshold
from tdiag.rules.base import Abstain, Found, Gain, count, held, ns, same_function, where
from tdiag.rules.device_waits import ISSUING, busy_scale, issuing_cuts, shortened_cuts
from tdiag.rules.examples import at, budget, traced
from tdiag.units import duration, percent

CODE = "TD750"
NAME = "gradient-for-each-slice"
CLASS = "compute"

MIN_SLICES = Threshold(
    3, "slices of a tensor", "By arithmetic: two gradients and their sum are the least that can be."
)
_MEASURED = (
    "Measured, slices one by one against unbind, with backward, eight shapes, one core, torch 2.13:"
)
SAVED_LOW_FRAC = Threshold(
    0.7,
    "of this time",
    f"{_MEASURED} 0.92 the least (benchmarks/rule_constants.py td750); a trial of a GRU cell over"
    " 80 steps saved 0.77 of what the trace shows.",
)
SAVED_HIGH_FRAC = Threshold(
    1.5,
    "of this time",
    f"{_MEASURED} 1.22 the most (benchmarks/rule_constants.py td750); the rest is room for calls of"
    " the loop, which go as well where one call computes for all slices.",
)


class Sliced(NamedTuple):
    """Per step: tensors of this size that one function's backward fills with zeros, of how many
    sliced tensors, and the time of filling and adding, ns, in the trace. ``spared``: the calls for
    this beyond one gradient for each tensor; a third copies the slice's into what was filled."""

    at: Place
    dims: tuple[int, ...]
    fills: float
    wholes: float
    traced_ns: float
    spared: float

    def wasted_ns(self) -> float:
        """Without one gradient for each tensor."""
        return self.traced_ns * (1 - self.wholes / self.fills)


def check(
    budget: Budget, work: Work, traced: TracedSteps, ops: Ops | None, device: DeviceTime | None
) -> Found | None:
    found = list(_sliced(work, ops))
    if not found:
        return None
    clean, most_ns = min(1.0, budget.step_ns / traced.mean_ns), held(budget, "backward")
    if budget.has_device:
        if device is None:
            raise Abstain("no device activity was traced")
        clean, most_ns = busy_scale(budget, device), held(budget, "compute")
    waste = min(sum(map(Sliced.wasted_ns, found)) * clean, most_ns)
    most = max(found, key=Sliced.wasted_ns)
    each = most.fills / most.wholes
    size = " × ".join(map(str, most.dims))
    return Found(
        summary=(
            f"Backward fills and adds a gradient of {size} for each of {each:.0f} slices that are"
            f" taken{where(most.at)}: {duration(waste)} ({percent(waste / budget.step_ns)} of the"
            " step)."
        ),
        evidence=(
            count("whole gradients filled with zeros", most.fills, "trace", "per_step"),
            count("tensors that are sliced", most.wholes, "trace", "per_step"),
            ns("filling and adding beyond one for each tensor", waste, "trace"),
        ),
        fix=Fix(
            f"Take all slices{where(most.at)} in one call (unbind, split, or one index_select for"
            " all): its backward writes one gradient.",
            "review",
            "model.slices_at_once",
            action="Take all slices in one call",
            code="for part in x.unbind(1):  # not x[:, t] for each t\n    ...",
        ),
        gain=_gain(waste, sum(x.spared for x in found), budget, device),
        at=most.at,
    )


def _gain(waste: float, spared: float, budget: Budget, device: DeviceTime | None) -> Gain:
    """``spared``: kernels per step, with a device."""
    low, high = waste * SAVED_LOW_FRAC, waste * SAVED_HIGH_FRAC
    why = f"one call saves {SAVED_LOW_FRAC} to {SAVED_HIGH_FRAC} of the time of filling and adding"
    if device is None or not budget.has_device:
        return Gain(low, high, f"{why}, and calls.", ("forward", "loss", "backward"))
    issued = held(budget, *ISSUING)
    left = 1 - min(1.0, spared / device.kernels_per_step) if device.kernels_per_step else 1.0
    return Gain(
        low,
        high + issued * (1 - left),
        f"{why}; high end: and the host's time to issue them.",
        ("compute", *ISSUING),
        shortened_cuts(budget, low),
        issuing_cuts(budget, issued, left) | shortened_cuts(budget, high),
    )


def _sliced(work: Work, ops: Ops | None) -> Iterator[Sliced]:
    groups: dict[tuple[Place | None, tuple[int, ...]], list[OpWork]] = defaultdict(list)
    for op in work.ops:
        if op.backward and op.name in FILLS + ADDS and op.dims[0]:
            groups[op.at, op.dims[0]].append(op)
    stacks = any(op.at for op in work.ops)
    for (function, dims), members in groups.items():
        fills = sum(op.count for op in members if op.name in FILLS)
        # Of n gradients of one tensor, n - 1 are added to another.
        adds = sum(op.count for op in members if op.name in ADDS and op.dims[:2] == (dims, dims))
        wholes = max(1.0, fills - adds)
        place = function if stacks or ops is None else _taking(fills, ops)
        # One without a place of the user's is a library's own.
        if place is None or (ops and _taken(place, ops) < MAJORITY_FRAC * fills):
            continue
        if fills >= MIN_SLICES * wholes:
            spent = sum(op.spent_ns for op in members)
            yield Sliced(place, dims, fills, wholes, spent, 2 * fills + adds - 2 * wholes)


def _taken(place: Place, ops: Ops) -> float:
    """Slices that the function's own lines take in a step. Not what a library takes that they call
    (the three parts of nn.MultiheadAttention), nor what a mask selects: its backward fills a whole
    gradient, too, and is no slice's."""
    mine = [x for x in ops.lines if same_function(x.at, place)]
    taken = sum(x.names.get(name, 0.0) for x in mine for name in TAKING)
    return taken - sum(x.conversions.get("masked_select", 0.0) for x in mine)


def _taking(fills: float, ops: Ops) -> Place | None:
    """Without stacks in the trace: the line that takes as many slices in a step, or next more. Most
    of a line's slices would be of this tensor: one that takes many more takes others."""
    lines = [x for x in ops.lines if x.grad_calls]
    taken = [(sum(x.names.get(name, 0.0) for name in TAKING), x.at) for x in lines]
    enough = [(number, at) for number, at in taken if fills <= number <= fills / MAJORITY_FRAC]
    return min(enough, key=itemgetter(0))[1] if enough else None


def fires() -> Evidence:
    """A cell written out over 100 time steps, each with `x[:, t]`."""
    return _recurrent(fills=100.0, adds=99.0)


def clear() -> Evidence:
    """The steps of ``x.unbind(1)``."""
    return _recurrent(fills=1.0, adds=0.0)


def _recurrent(fills: float, adds: float) -> Evidence:
    whole = (64, 100, 256)

    def op(name: str, *dims: tuple[int, ...], count: float, each_ns: float) -> OpWork:
        return OpWork(name=name, dims=dims, dtype="float32", count=count, flops=0.0, moved=6.6e6,
                      host_ns=count * each_ns, device_ns=None, at=at(44, "forward"),
                      backward=True)  # fmt: skip

    cells = op("aten::mm", (64, 256), (256, 256), count=100.0, each_ns=4e5)
    step = budget(forward=40, loss=2, backward=110, optimizer=3)
    made = (
        op("aten::fill_", whole, count=fills, each_ns=3e5),
        op("aten::add_", whole, whole, count=adds, each_ns=4e5),
        cells,
    )
    return Evidence().add(step, traced(310), Work(ops=made, calls=600.0))
