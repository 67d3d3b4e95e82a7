"""A part of the time of torch calls, and the backward that it causes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import msgspec

from tdiag.evidence.sampled import Stacks
from tdiag.evidence.steps import Phases, component_of
from tdiag.evidence.torch_ops import Dispatch, OpLine, Ops
from tdiag.model.threshold import Threshold
from tdiag.rules.base import Gain
from tdiag.rules.log_lines import logging_spots
from tdiag.rules.loop_lines import FORWARD
from tdiag.rules.thresholds import FEWER_ROWS_FRAC, LOW_END_FRAC
from tdiag.units import duration, percent

BEFORE_BACKWARD = ("prepare", *FORWARD)
BACKWARD_TIMES = Threshold(
    4,
    "times as long, for the same time in forward",
    "Measured with torch 2.13 on a CPU: backward ÷ forward of 25 calls in a row, as a multiple of"
    " that of Linear, was 1.1 for a broadcast product, 3.3 to 3.6 for small products and slices,"
    " 4.8 for an index of one row, which writes a tensor as large as all rows; with busy"
    " neighbours at most 4.0 (benchmarks/rule_constants.py call_parts.BACKWARD_TIMES).",
)
MEASURED_ERROR_FRAC = Threshold(
    0.2,
    "of the share of backward, or of the rest if that is less",
    "Measured, three runs of a planted case: the share of a line differed from the median of its"
    " runs by 0.09 to 0.12 of it; by 0.44 in a case where a stall disturbed one run. In use:"
    " nearly twice the former (benchmarks/rule_constants.py call_parts.MEASURED_ERROR_FRAC).",
)


class BackwardShare(NamedTuple):
    """The share of backward, 0..1, that a part of calls causes. ``measured``: from its time by
    line; else from the calls' time in forward, and ``least`` and ``most`` are far apart."""

    least: float
    likely: float
    most: float
    measured: bool

    @property
    def at_most(self) -> str:
        """For an explanation of the high end."""
        if self.measured:
            return f"their backward, ± {percent(MEASURED_ERROR_FRAC)}"
        return f"a backward that takes up to {BACKWARD_TIMES:.0f} times as long as for other calls"


@dataclass(frozen=True)
class PartOfCalls:
    """A part of the time of torch calls: those that repeat, that compute what is not used, …

    ``lines``: with this part, largest first; ``spent``: ns per step by phase before backward;
    ``share``: of backward; ``all_backward_ns``: the phase, per step.
    """

    lines: tuple[OpLine, ...]
    spent: dict[str, float]
    share: BackwardShare
    all_backward_ns: float

    @property
    def ns(self) -> float:
        """Per step, without backward."""
        return sum(self.spent.values())

    @property
    def backward_ns(self) -> float:
        return self.all_backward_ns * self.share.likely

    @property
    def most_backward_ns(self) -> float:
        return self.all_backward_ns * self.share.most

    @property
    def least_backward_ns(self) -> float:
        return self.all_backward_ns * self.share.least

    @property
    def calls(self) -> float:
        """Torch calls of its lines per step, with those that are not in the part."""
        return sum(line.calls for line in self.lines)

    @property
    def phases(self) -> tuple[str, ...]:
        """The components of the budget with its time, backward included."""
        return tuple(dict.fromkeys((*map(component_of, self.spent), "backward")))

    def gain(self, dispatch: Dispatch | None) -> Gain:
        """Of giving these calls fewer rows or columns: their fixed cost stays."""
        low, how = LOW_END_FRAC, "half is saved"
        fixed_ns = dispatch.least_ns(self.lines) if dispatch else 0.0
        if dispatch:
            low, how = FEWER_ROWS_FRAC, "the calls' fixed cost stays, and a quarter of the rest"
        return Gain(
            max(0.0, self.ns + self.least_backward_ns - fixed_ns) * low,
            self.ns + self.most_backward_ns,
            f"high end: the {duration(self.ns)}, and {self.share.at_most}; low end:"
            f" {'' if self.share.measured else 'a quarter of that of other calls, and '}{how}.",
            self.phases,
        )

    def gain_if_less(self, low: float, high: float, how: str) -> Gain:
        """If these calls and their backward lose a measured share of their time, ``low`` to
        ``high``. ``how``: these figures in words."""
        return Gain(
            (self.ns + self.least_backward_ns) * low,
            (self.ns + self.most_backward_ns) * high,
            f"{how}, with {self.share.at_most}"
            f"{'' if self.share.measured else ' (low end: a quarter of that of other calls)'}.",
            self.phases,
        )

    def gain_times_as_fast(self, least: float, most: float) -> Gain:
        """If these calls and their backward get ``least`` to ``most`` times as fast."""
        how = f"{least} to {most} times as fast"
        return self.gain_if_less(1 - 1 / least, 1 - 1 / most, how)


def part_of_calls(
    phases: Phases,
    ops: Ops,
    stacks: Stacks | None,
    part: Callable[[OpLine], float],
    among: Collection[str] = BEFORE_BACKWARD,
) -> PartOfCalls | None:
    """What ``part`` gives for each line ``among`` these phases, ns; None if that takes no time.
    Lines that write logs are left out: they are TD804's."""
    logging = logging_spots(stacks)
    mine = [x for x in ops.lines if part(x) and x.phase in among and x.at.spot not in logging]
    spent = part_of_phases(phases, ops, lambda x: part(x) if x in mine else 0.0, among)
    if not sum(spent.values()):
        return None
    lines = tuple(sorted(mine, key=part, reverse=True))
    return PartOfCalls(
        lines, spent, backward_share(lines, ops, part), phases.wall_ns.get("backward", 0.0)
    )


def part_of_phases(
    phases: Phases,
    ops: Ops,
    part: Callable[[OpLine], float],
    among: Collection[str] = BEFORE_BACKWARD,
) -> dict[str, float]:
    """For each phase ``among`` these: its clean time × this part of the time of its calls, ns per
    step; phases without any are left out. Outside of forward and loss, time beyond that of the
    calls is other work: an environment, a batch in NumPy."""
    found = {}
    for phase in among:
        mine = [line for line in ops.lines if line.phase == phase]
        whole = sum(line.elapsed_ns for line in mine)
        if whole and (share := sum(map(part, mine)) / whole):
            wall = phases.wall_ns.get(phase, 0.0)
            found[phase] = share * (wall if phase in FORWARD else min(wall, whole))
    return found


def sampled_part(
    lines: Sequence[OpLine], part: Callable[[OpLine], float], stacks: Stacks | None
) -> float:
    """The share of the training thread's samples in this part of the lines' calls, if it has the
    same share of a line's samples as of its calls."""
    parts = {x.at.spot: part(x) / x.elapsed_ns for x in lines if x.elapsed_ns}
    training = stacks.training if stacks else ()
    return sum(x.self_frac * parts.get(x.at.spot, 0.0) for x in training)


def backward_share(
    lines: Sequence[OpLine], ops: Ops, part: Callable[[OpLine], float]
) -> BackwardShare:
    """The share of this part of the lines' calls in backward. Where its time by line was not
    measured: their share in all time that records gradients, if as many of a line's calls record
    gradients in the part as in all of it."""
    recorded = sum(part(x) * x.grad_calls / x.calls for x in lines if x.calls)
    recorded = min(1.0, recorded / (recorded_ns(ops.lines) or 1.0))
    if whole := ops.measured_backward_ns:
        found = sum(_part_of_backward(x, part) for x in lines if x.elapsed_ns)
        share = min(1.0, found / whole)
        error = MEASURED_ERROR_FRAC * min(share, 1 - share)
        # Of the time of no line, as much may be theirs as their calls in forward can cause.
        other = (ops.backward_other_ns or 0.0) / whole * most_of_backward(recorded)
        return BackwardShare(share - error, share, min(1.0, share + error + other), True)
    return BackwardShare(least_of_backward(recorded), recorded, most_of_backward(recorded), False)


def _part_of_backward(line: OpLine, part: Callable[[OpLine], float]) -> float:
    """This part of the time of the line's backward, ns per step. A part that is not measured there
    has the same share of it as of the calls."""
    whole = line.backward.get("elapsed_ns", 0.0)
    times = {
        name: getattr(line, name) / line.elapsed_ns * whole
        for name in line.__struct_fields__
        if name.endswith("_ns") and name != "work_ns"
    }
    return min(whole, part(msgspec.structs.replace(line, **times | line.backward)))


def most_of_backward(share: float) -> float:
    """The largest share of backward that calls can take, given their share of the forward time that
    records gradients, where backward was not measured by line."""
    return BACKWARD_TIMES * share / (1 + (BACKWARD_TIMES - 1) * share)


def least_of_backward(share: float) -> float:
    """The smallest share of backward that calls take, given the same: all others take longest."""
    return share / (share + BACKWARD_TIMES * (1 - share))


def recorded_ns(lines: Sequence[OpLine]) -> float:
    """Time of calls that backward will run, without what it runs itself (a gradient in a loss)."""
    return sum(line.recording_ns for line in lines if line.phase != "backward")
