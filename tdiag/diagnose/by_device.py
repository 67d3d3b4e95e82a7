"""Waste that the counted calls show, priced by the device's time instead of the host's.

The host's clock shows only how long a call takes to launch. So the probe estimates what each call
costs the device, and the trace says how long the device worked in forward and in backward.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace as with_fields

from msgspec.structs import replace

from tdiag.evidence.device import DeviceTime, Kernels
from tdiag.evidence.roofline import Work
from tdiag.evidence.steps import Budget, Phases
from tdiag.evidence.store import Evidence
from tdiag.evidence.torch_ops import OpLine, Ops
from tdiag.model.kind import Kind
from tdiag.rules.base import Abstain, Found
from tdiag.rules.thresholds import LOW_END_FRAC

WHY = (
    "The device's time is divided among the calls by their estimated work; at the low end half of"
    " that is theirs."
)
BEFORE_BACKWARD = ("prepare", "forward", "loss")


def priced_by_device(evidence: Evidence) -> Mapping[type[Kind], Kind]:
    """:class:`Phases` and :class:`Ops` in which the device's time takes the place of the host's, ns
    per clean step. Raises Abstain if the work was not counted, or the device's time not traced."""
    budget, phases, ops = evidence.get(Budget), evidence.get(Phases), evidence.get(Ops)
    work, device = evidence.get(Work), evidence.get(DeviceTime)
    if budget is None or phases is None or ops is None or not any(x.work_ns for x in ops.lines):
        raise Abstain("what the calls cost the device was not counted")
    if work is None or device is None:
        raise Abstain("what the device did in forward and in backward was not traced")
    scale = budget.step_ns / device.step_ns
    forward, backward = (
        sum(op.device_ns or 0.0 for op in work.ops if op.backward is late) * scale
        for late in (False, True)
    )
    forward = max(0.0, forward - _updating(evidence.get(Kernels)) * scale)
    lines = [x for x in ops.lines if x.phase in BEFORE_BACKWARD]
    whole = sum(x.work_ns for x in lines)
    shares = {name: sum(x.work_ns for x in lines if x.phase == name) for name in BEFORE_BACKWARD}
    walls = {name: forward * share / whole for name, share in shares.items() if share}
    priced = (_priced(x, forward / whole if whole else 0.0) for x in ops.lines)
    return {
        Phases: replace(phases, wall_ns={**walls, "backward": backward}),
        Ops: replace(ops, lines=tuple(priced)),
    }


def _priced(line: OpLine, device: float) -> OpLine:
    """The line with its times and parts × ``device``: the device's time ÷ the estimated work."""
    times = {x: getattr(line, x) * device for x in line.__struct_fields__ if x.endswith("_ns")}
    return replace(line, **{**times, "elapsed_ns": line.work_ns * device})


def _updating(kernels: Kernels | None) -> float:
    """The optimizer's kernels, ns per traced step: they are no part of forward."""
    families = kernels.families if kernels else ()
    return sum(x.device_ns for x in families if x.family == "optimizer")


def of_device(found: Found) -> Found:
    """What the rule found, with its gain in the device's part of the budget. The low end is halved:
    the work is an estimate."""
    evidence = tuple(
        replace(x, source="trace") if x.source == "baseline" else x for x in found.evidence
    )
    gain = found.gain
    if gain is not None:
        why = f"{gain.why.rstrip('.')}. {WHY}"
        low = gain.low_ns * LOW_END_FRAC
        gain = with_fields(gain, components=("compute",), why=why, low_ns=low)
    return with_fields(found, evidence=evidence, gain=gain)
