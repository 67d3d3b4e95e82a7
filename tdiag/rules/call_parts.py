"""A part of the time of torch calls, and the backward that it causes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from tdiag.evidence.sampled import Stacks
from tdiag.evidence.steps import Phases
from tdiag.evidence.torch_ops import Dispatch, OpLine, Ops
from tdiag.model.threshold import Threshold
from tdiag.rules.base import Gain
from tdiag.rules.log_lines import logging_spots
from tdiag.rules.thresholds import FEWER_ROWS_FRAC, LOW_END_FRAC
from tdiag.units import duration

BACKWARD_TIMES = Threshold(
    4,
    "times as long, for the same time in forward",
    "Measured with torch 2.13 on a CPU: backward ÷ forward of 25 calls in a row, as a multiple of"
    " that of Linear, was 1.1 for a broadcast product, 3.3 to 3.6 for small products and slices,"
    " 4.8 for an index of one row, which writes a tensor as large as all rows; with busy"
    " neighbours at most 4.0 (benchmarks/rule_constants.py call_parts.BACKWARD_TIMES).",
)


@dataclass(frozen=True)
class PartOfCalls:
    """A part of the time of torch calls: those that repeat, that compute what is not used, …

    ``lines``: with this part, largest first; ``spent``: ns per step by phase before backward;
    ``share``: of the time that records gradients, 0..1; ``all_backward_ns``: the phase, per step.
    """

    lines: tuple[OpLine, ...]
    spent: dict[str, float]
    share: float
    all_backward_ns: float

    @property
    def ns(self) -> float:
        """Per step, without backward."""
        return sum(self.spent.values())

    @property
    def backward_ns(self) -> float:
        """Per step, if backward takes as long for these calls as for others."""
        return self.all_backward_ns * self.share

    @property
    def most_backward_ns(self) -> float:
        return self.all_backward_ns * most_of_backward(self.share)

    @property
    def least_backward_ns(self) -> float:
        return self.all_backward_ns * least_of_backward(self.share)

    @property
    def calls(self) -> float:
        """Torch calls of its lines per step, with those that are not in the part."""
        return sum(line.calls for line in self.lines)

    @property
    def phases(self) -> tuple[str, ...]:
        """Where its time is, backward included."""
        return tuple(dict.fromkeys((*self.spent, "backward")))

    def gain(self, dispatch: Dispatch | None) -> Gain:
        """Of giving these calls fewer rows or columns: their fixed cost stays."""
        low, how = LOW_END_FRAC, "half is saved"
        fixed_ns = dispatch.least_ns(self.lines) if dispatch else 0.0
        if dispatch:
            low, how = FEWER_ROWS_FRAC, "the calls' fixed cost stays, and a quarter of the rest"
        return Gain(
            max(0.0, self.ns + self.least_backward_ns - fixed_ns) * low,
            self.ns + self.most_backward_ns,
            f"high end: the {duration(self.ns)}, and a backward that takes up to"
            f" {BACKWARD_TIMES:.0f} times as long as that of other calls; low end: the others'"
            f" does, and {how}.",
            self.phases,
        )

    def gain_if_less(self, low: float, high: float, how: str) -> Gain:
        """If these calls and their backward lose a measured share of their time, ``low`` to
        ``high``. ``how``: these figures in words."""
        return Gain(
            (self.ns + self.least_backward_ns) * low,
            (self.ns + self.most_backward_ns) * high,
            f"{how}; backward may take {BACKWARD_TIMES:.0f} times as long as that of other calls at"
            " the high end, and theirs that at the low end.",
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
    among: Collection[str] = ("prepare", "forward", "loss"),
) -> PartOfCalls | None:
    """What ``part`` gives for each line ``among`` these phases, ns; None if that takes no time.
    Lines that write logs are left out: they are TD804's."""
    logging = logging_spots(stacks)
    mine = [x for x in ops.lines if part(x) and x.phase in among and x.at.spot not in logging]
    spent = part_of_phases(phases, ops, lambda x: part(x) if x in mine else 0.0)
    if not sum(spent.values()):
        return None
    lines = tuple(sorted(mine, key=part, reverse=True))
    return PartOfCalls(
        lines, spent, backward_share(lines, ops, part), phases.wall_ns.get("backward", 0.0)
    )


def part_of_phases(phases: Phases, ops: Ops, part: Callable[[OpLine], float]) -> dict[str, float]:
    """For each training phase before backward: its clean time × this part of the time of its calls,
    ns per step; phases without any are left out. Before the forward pass, time beyond that of the
    calls is other work: an environment, a batch in NumPy."""
    found = {}
    for phase in ("prepare", "forward", "loss"):
        mine = [line for line in ops.lines if line.phase == phase]
        whole = sum(line.elapsed_ns for line in mine)
        if whole and (share := sum(map(part, mine)) / whole):
            wall = phases.wall_ns.get(phase, 0.0)
            found[phase] = share * (min(wall, whole) if phase == "prepare" else wall)
    return found


def backward_share(lines: Sequence[OpLine], ops: Ops, part: Callable[[OpLine], float]) -> float:
    """The share, 0..1, of this part of the lines' time in all time that records gradients, and so
    in backward, if as many of a line's calls record gradients in the part as in all of it."""
    recorded = sum(part(x) * x.grad_calls / x.calls for x in lines if x.calls)
    return min(1.0, recorded / (recorded_ns(ops.lines) or 1.0))


def most_of_backward(share: float) -> float:
    """The largest share of backward that calls can take, given their share of the forward time that
    records gradients. Backward is one call: only the times in forward show how it is divided."""
    return BACKWARD_TIMES * share / (1 + (BACKWARD_TIMES - 1) * share)


def least_of_backward(share: float) -> float:
    """The smallest share of backward that calls take, given the same: all others take longest."""
    return share / (share + BACKWARD_TIMES * (1 - share))


def recorded_ns(lines: Sequence[OpLine]) -> float:
    """Time of calls that backward will run, without what it runs itself (a gradient in a loss)."""
    return sum(line.recording_ns for line in lines if line.phase != "backward")
