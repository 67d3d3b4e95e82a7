"""The time of large tensors that are made and reduced again, with their backward (TD721, TD730,
TD734, TD735)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tdiag.evidence.steps import Budget, Phases
from tdiag.evidence.store import Evidence
from tdiag.evidence.torch_ops import OpLine, Ops
from tdiag.model.diagnosis import Measure
from tdiag.model.place import Place
from tdiag.rules.base import Gain, count, ns
from tdiag.rules.call_parts import BackwardShare, backward_share, part_of_phases
from tdiag.rules.examples import budget, op_line, ops, phases


def contracted_ns(
    lines: Sequence[OpLine], phases: Phases, ops: Ops
) -> tuple[dict[str, float], float, BackwardShare]:
    """By phase, ns per step: the calls of these lines, the backward that they cause, and the calls
    that a backward written by hand makes itself. Then all of it with as much backward as they may
    cause; and their share of backward."""
    spent = part_of_phases(phases, ops, lambda x: x.contracted_ns if x in lines else 0.0)
    wall = phases.wall_ns.get("backward", 0.0)
    recorded = [line for line in lines if line.phase != "backward"]
    share = backward_share(recorded, ops, lambda x: x.contracted_ns)
    by_hand = sum(line.contracted_ns for line in lines if line.phase == "backward")
    before = sum(spent.values())
    if backward := min(wall, wall * share.likely + by_hand):
        spent["backward"] = backward
    return spent, before + min(wall, wall * share.most + by_hand), share


@dataclass(frozen=True)
class Contracted:
    """All lines of one kind of such calls. ``ns``: with their backward, per step; ``at``: the line
    with most of it."""

    ns: float
    most_ns: float
    share: BackwardShare
    parts: tuple[str, ...]
    calls: float
    at: Place

    def gain(self, low_times: float, high_times: float) -> Gain:
        """Of another expression, which was this many times as fast in measurements."""
        return Gain(
            self.ns * (1 - 1 / low_times),
            self.most_ns * (1 - 1 / high_times),
            "low and high end: the least and the most that this saved in measurements; high end:"
            f" with {self.share.at_most}.",
            self.parts,
        )


def found_in(budget: Budget, phases: Phases, ops: Ops, kind: str) -> Contracted | None:
    """The calls of this kind (``OpLine.contraction``); None without any."""
    lines = [line for line in ops.lines if line.contraction == kind]
    if not lines:
        return None
    spent, most, share = contracted_ns(lines, phases, ops)
    total = sum(spent.values())
    if not total:
        return None
    worst = max(lines, key=lambda line: line.contracted_ns)
    calls = sum(line.calls for line in lines)
    return Contracted(total, most, share, tuple(spent), calls, worst.at)


def evidence_of(found: Contracted) -> tuple[Measure, ...]:
    return (
        ns("making, reducing, and their backward", found.ns, "baseline"),
        count("torch calls of these lines", found.calls, "ops", "per_step"),
    )


def example(kind: str) -> Evidence:
    """A step most of which are such calls; "": as long, but of another kind."""
    mine = op_line(
        9, "forward", 3, grad_calls=3.0, elapsed_ns=2.3e6,
        contracted_ns=2.2e6 if kind else 0.0, contraction=kind,
    )  # fmt: skip
    rest = op_line(10, "forward", 2, grad_calls=2.0, elapsed_ns=0.1e6)
    step = budget(forward=3.6, backward=3.5, optimizer=0.4)
    clean = phases(forward=3.6, backward=3.5, optimizer=0.4)
    return Evidence().add(step, clean, ops(mine, rest))
