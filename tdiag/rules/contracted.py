"""The time of large tensors that are made and reduced again, with their backward (TD721, TD730)."""

from __future__ import annotations

from collections.abc import Sequence

from tdiag.evidence.steps import Phases
from tdiag.evidence.torch_ops import OpLine, Ops
from tdiag.rules.fixed_cost import backward_share, most_of_backward, part_of_phases


def contracted_ns(lines: Sequence[OpLine], phases: Phases, ops: Ops) -> dict[str, float]:
    """By phase, ns per step: the calls of these lines, the backward that they cause, and the calls
    that a backward written by hand makes itself."""
    spent = part_of_phases(phases, ops, lambda x: x.contracted_ns if x in lines else 0.0)
    wall = phases.wall_ns.get("backward", 0.0)
    recorded = [line for line in lines if line.phase != "backward"]
    backward = wall * backward_share(recorded, ops, lambda x: x.contracted_ns)
    backward += sum(line.contracted_ns for line in lines if line.phase == "backward")
    if backward:
        spent["backward"] = min(backward, wall)
    return spent


def with_more_backward(spent: dict[str, float], phases: Phases) -> float:
    """All of it, if their backward takes ``BACKWARD_TIMES`` as long as that of other calls."""
    wall = phases.wall_ns.get("backward", 0.0)
    backward = spent.get("backward", 0.0)
    most = wall * most_of_backward(backward / wall) if wall else 0.0
    return sum(spent.values()) - backward + most
