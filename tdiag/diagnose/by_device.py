"""Waste that the counted calls show, priced by the device's time instead of the host's.

The host's clock shows only how long a call takes to launch. So the probe estimates what each call
costs the device, and the trace says how long the device worked in forward and in backward.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace as with_fields

from msgspec.structs import replace

from tdiag.evidence.device import DeviceTime, Kernels
from tdiag.evidence.roofline import Roof, Work
from tdiag.evidence.steps import Budget, Phases
from tdiag.evidence.store import Evidence
from tdiag.evidence.torch_ops import OpLine, Ops
from tdiag.model.kind import Kind
from tdiag.model.threshold import Threshold
from tdiag.rules.base import DATA_WAIT, Abstain, Found, Gain, held
from tdiag.rules.call_parts import recorded_ns
from tdiag.rules.device_waits import (
    ISSUING,
    ISSUING_TAGS,
    busy_scale,
    joined_cuts,
    kernels_ns,
    shortened_cuts,
)

WHY = (
    "The device's time is divided among the calls by their estimated work; at the low end theirs"
    " takes half as long as that of others, at the high end twice."
)
WRONG_TIMES = Threshold(
    2,
    "times",
    "Heuristic: by as much the estimated work of some calls may be wrong against that of others."
    " On an H200 what two planted cases wasted took 1.2 and 0.7 times as long as estimated (TD727"
    " and TD728, docs/gpu-validation.md).",
)
BEFORE_BACKWARD = ("prepare", "forward", "loss")
# Of the host, in the replay of a trace (tdiag.evidence.replay): without the optimizer's.
ISSUED_TAGS = ("call", "host launch")


def priced_by_device(evidence: Evidence) -> Mapping[type[Kind], Kind]:
    """:class:`Phases` and :class:`Ops` in which the device's time takes the place of the host's, ns
    per clean step. Raises Abstain if the work was not counted, or the device's time not traced."""
    budget, phases, ops = evidence.get(Budget), evidence.get(Phases), evidence.get(Ops)
    work, device = evidence.get(Work), evidence.get(DeviceTime)
    if budget is None or phases is None or ops is None or not any(x.work_ns for x in ops.lines):
        raise Abstain("what the calls cost the device was not counted")
    if work is None or device is None:
        raise Abstain("what the device did in forward and in backward was not traced")
    scale = busy_scale(budget, device)
    forward = kernels_ns(budget, work, device, lambda op: not op.backward)
    backward = kernels_ns(budget, work, device, lambda op: op.backward)
    forward = max(0.0, forward - _updating(evidence.get(Kernels)) * scale)
    lines = [x for x in ops.lines if x.phase in BEFORE_BACKWARD]
    whole = sum(x.work_ns for x in lines)
    shares = {name: sum(x.work_ns for x in lines if x.phase == name) for name in BEFORE_BACKWARD}
    walls = {name: forward * share / whole for name, share in shares.items() if share}
    priced = [_priced(x, forward / whole if whole else 0.0) for x in ops.lines]
    recorded = recorded_ns(priced)
    times = backward / recorded if recorded else 0.0
    return {
        Phases: replace(phases, wall_ns={**walls, "backward": backward}),
        Ops: replace(
            ops, lines=tuple(_with_backward(x, times) for x in priced), backward_other_ns=0.0
        ),
    }


def _priced(line: OpLine, device: float) -> OpLine:
    """The line with its times and parts × ``device``: the device's time ÷ the estimated work."""
    times = {x: getattr(line, x) * device for x in line.__struct_fields__ if x.endswith("_ns")}
    return replace(line, **{**times, "elapsed_ns": line.work_ns * device})


def _with_backward(line: OpLine, times: float) -> OpLine:
    """``times``: how long the device's backward takes against the calls that record gradients."""
    if line.phase == "backward" or not line.recording_ns:
        return line
    return replace(line, backward={"elapsed_ns": line.recording_ns * times})


def _updating(kernels: Kernels | None) -> float:
    """The optimizer's kernels, ns per traced step: they are no part of forward."""
    families = kernels.families if kernels else ()
    return sum(x.device_ns for x in families if x.family == "optimizer")


def of_device(found: Found, budget: Budget, issued: tuple[float, float] = (0.0, 0.0)) -> Found:
    """What the rule found, with its gain in the device's part of the budget, and wider: the work is
    an estimate. ``issued``: the share of the host's calls that need not be issued any more, at the
    low end and at the high end, 0..1 (:func:`spared`)."""
    evidence = tuple(
        replace(x, source="trace") if x.source == "baseline" else x for x in found.evidence
    )
    gain = found.gain
    if gain is not None:
        why = f"{gain.why.rstrip('.')}. {WHY}"
        low = _if_wrong(gain.low_ns, held(budget, "compute"), 1 / WRONG_TIMES)
        high = _if_wrong(gain.high_ns, held(budget, "compute"), WRONG_TIMES)
        gain = with_fields(
            gain,
            components=("compute", *ISSUING) if issued[1] else ("compute",),
            why=why,
            low_ns=low,
            high_ns=high,
            low_cuts=shortened_cuts(budget, low) | _fewer(issued[0]),
            high_cuts=shortened_cuts(budget, high) | _fewer(issued[1]),
        )
    return with_fields(found, evidence=evidence, gain=gain)


def spared(by_host: Found | None, phases: Phases) -> tuple[float, float]:
    """The share of the model's and the loss's time on the host that the fix spares, at the low end
    and at the high end, 0..1. ``by_host``: what the rule finds by the host's clock, which shows how
    long the calls take to issue."""
    whole = sum(phases.wall_ns.get(name, 0.0) for name in (*BEFORE_BACKWARD, "backward"))
    if by_host is None or by_host.gain is None or not whole:
        return 0.0, 0.0
    return _shares(by_host.gain, whole)


def _shares(gain: Gain, whole: float) -> tuple[float, float]:
    """Its ends as shares of ``whole``, 0..1."""
    low, high = (min(1.0, max(0.0, ns / whole)) for ns in (gain.low_ns, gain.high_ns))
    return low, high


def of_issuing(found: Found, evidence: Evidence) -> Found:
    """What a rule found by the host's clock, in a run with a device: the gain is what the host need
    not issue, as a share of its time in all phases but waiting for data (and the loss, if the rule
    saves nothing there); at the high end short kernels become as much fewer, too. Raises Abstain if
    the device was not traced."""
    budget, phases, gain = evidence.get(Budget), evidence.get(Phases), found.gain
    if budget is None or phases is None or evidence.get(DeviceTime) is None:
        raise Abstain("no device activity was traced")
    if gain is None:
        return found
    # The device's idle time in the loss is a component of its own.
    loss = "python_loss" in gain.components
    apart = DATA_WAIT if loss else (*DATA_WAIT, "loss")
    parts = (*ISSUING, "python_loss") if loss else ISSUING
    tags = (*ISSUING_TAGS, "host python_loss") if loss else ISSUING_TAGS
    whole = sum(ns for name, ns in phases.wall_ns.items() if name not in apart)
    if not whole:
        return found
    low, high = _shares(gain, whole)
    issuing = held(budget, *parts)
    fewer = joined_cuts(budget, evidence.get(Work), evidence.get(Roof), issuing, high)
    less = with_fields(
        gain,
        low_ns=issuing * low,
        high_ns=issuing * high,
        why=f"{gain.why.rstrip('.')}. Of the device's idle time while the host issues work, as much"
        " goes as of the host's time.",
        components=("compute", *parts) if fewer else parts,
        low_cuts=dict.fromkeys(tags, 1 - low) if low else {},
        high_cuts=dict.fromkeys(tags, 1 - high) | fewer,
    )
    return with_fields(found, gain=less)


def _fewer(share: float) -> dict[str, float]:
    """The host issues this share less of the work of the model and the loss."""
    return dict.fromkeys(ISSUED_TAGS, 1 - share) if share else {}


def _if_wrong(spent: float, whole: float, times: float) -> float:
    """What a part of the device's time takes if its work is ``times`` as much against that of the
    rest as estimated; all are ns per step."""
    rest = max(0.0, whole - spent)
    return whole * times * spent / (times * spent + rest) if spent else 0.0
