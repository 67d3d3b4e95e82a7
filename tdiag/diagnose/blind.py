"""A run on a device whose traces do not show what the device did: why, and what to do."""

from __future__ import annotations

from tdiag.evidence.device import FAULT, Device, DeviceTime
from tdiag.evidence.steps import Budget
from tdiag.evidence.store import Evidence
from tdiag.evidence.training import Flags
from tdiag.model.diagnosis import Verdict
from tdiag.model.threshold import NOTICEABLE_FRAC
from tdiag.probe.wire import TRACE, WINDOWS
from tdiag.rules.base import DATA_WAIT
from tdiag.units import percent

# Kinds of device whose kernels torch.profiler records through Kineto: CUPTI, roctracer, XPUPTI.
TRACED_KINDS = {"cuda": "CUPTI or roctracer", "xpu": "XPUPTI"}


def blind(evidence: Evidence, budget: Budget) -> Verdict:
    """``unknown``: waiting for the device looks like Python or computing."""
    device = evidence.get(Device)
    name = device.name if device and device.name else "a device"
    summary = f"this run computed on {name}, but no trace shows what the device did:"
    waits = budget.share(*DATA_WAIT)
    if waits >= NOTICEABLE_FRAC:
        also = f" The host waits for data in {percent(waits)} of the step; the device may work"
        also += " meanwhile."
    else:
        also = ""
    return Verdict(
        cls="unknown",
        share=round(1 - waits, 4),
        confidence=0.0,
        runner_up=None,
        summary=f"{summary} {_why(evidence, device)}.{also}",
    )


def _why(evidence: Evidence, device: Device | None) -> str:
    """The reason, and what to do."""
    state, flags = evidence.capture.get(TRACE), evidence.get(Flags)
    if flags is not None and flags.user_profiler:
        return (
            "the script runs its own torch profiler. Switch it off for one run, or read its"
            " trace with `tdiag analyze`"
        )
    if state is None or state.state != "captured":
        why = (state.why or state.state) if state is not None else "not requested"
        return f"{WINDOWS[TRACE].absent} ({why}). Run it with --profiling until the report is ready"
    library = TRACED_KINDS.get(device.kind) if device is not None else None
    if library is None:
        kind = device.kind if device is not None else ""
        return f"torch.profiler cannot trace a device of kind {kind}. Use its vendor's profiler"
    return (
        f"torch.profiler recorded no kernels{_said(evidence)}. Either {library} is missing or not"
        " permitted, or"
        " another tool holds it (nsys, ncu, DCGM). End that tool (DCGM: dcgmi profile --pause) and"
        " run again"
    )


def _said(evidence: Evidence) -> str:
    """Kineto's own message, in brackets."""
    fault = evidence.missing.get(DeviceTime, "")
    return f" ({fault})" if fault.startswith(FAULT) else ""
