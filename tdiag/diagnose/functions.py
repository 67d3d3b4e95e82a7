"""Trainings without modules: what the marks of a step cannot tell apart."""

from __future__ import annotations

from msgspec.structs import replace

from tdiag.evidence.device import Device
from tdiag.evidence.sampled import CallTrees, Stacks
from tdiag.evidence.steps import Phases
from tdiag.evidence.store import Evidence
from tdiag.evidence.torch_ops import Ops
from tdiag.rules.loop_lines import AFTER, BEFORE, FORWARD, beside_the_step, phase_of
from tdiag.rules.thresholds import MIN_SAMPLES


def divided(evidence: Evidence) -> Phases | None:
    """The phases of a training whose model is written with functions, on a CPU.

    No call of a module shows where its forward begins. The time until the backward also makes the
    batch and, without a loader, does what follows the last step. Its samples divide it into
    ``prepare``, ``forward`` and ``after_step``: lines that record gradients are the forward, others
    lie before it or after the step by the order of the source. The phases as they are if modules
    are called, or if too few samples were taken; None if there are none.
    """
    phases, stacks, ops = evidence.get(Phases), evidence.get(Stacks), evidence.get(Ops)
    if phases is None or stacks is None or ops is None or not phases.without_modules:
        return phases
    if evidence.get(Device) is not None:  # sampled lines may wait for it
        return phases
    wall = dict(phases.wall_ns)
    sides = [BEFORE] if {"data_wait", "after_step"} & wall.keys() else [BEFORE, AFTER]
    trees = evidence.get(CallTrees)
    before, after = (
        sum(x.self_frac for x in beside_the_step(side, stacks, ops, trees)) if side in sides else 0
        for side in (BEFORE, AFTER)
    )
    forward = sum(x.self_frac for x in stacks.training if phase_of(x, ops) in FORWARD)
    seen = before + after + forward
    if not forward or seen * stacks.samples < MIN_SAMPLES:
        return phases
    spans = {name: wall.pop(name) for name in ("prepare", "forward") if name in wall}
    whole = sum(spans.values())
    for name, share in (("prepare", before), ("forward", forward), ("after_step", after)):
        if share:
            wall[name] = wall.get(name, 0.0) + whole * share / seen
    on_core = sum(phases.cpu_ns.get(name, wall_ns) for name, wall_ns in spans.items())
    cpu = {name: ns for name, ns in phases.cpu_ns.items() if name not in spans}
    if before:  # what is computed is computed on a core
        beside = max(0.0, on_core - whole * forward / seen)
        cpu["prepare"] = beside * before / (before + after)
    return replace(phases, wall_ns=wall, cpu_ns=cpu)
