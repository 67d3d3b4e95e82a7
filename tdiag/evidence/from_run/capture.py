"""What was captured, what was not, and why: in the user's words."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from tdiag.evidence.compiling import CompiledRegions, Compiles
from tdiag.evidence.device import DeviceTime, Kernels, SyncLines, Syncs, Transfers
from tdiag.evidence.feeding import Inputs, Loaders, PaddedLookups
from tdiag.evidence.from_run.event_files import Process
from tdiag.evidence.from_run.records import (
    FailureRecord,
    FinishRecord,
    SamplerRecord,
    WindowRecord,
)
from tdiag.evidence.machine import DebugVariables, Startup, Syscalls, System, Threads
from tdiag.evidence.memory import MemoryGrowth
from tdiag.evidence.ranks import Communication, Ddp
from tdiag.evidence.roofline import Work
from tdiag.evidence.sampled import Stacks
from tdiag.evidence.steps import Phases, Steps, TracedSteps
from tdiag.evidence.store import Evidence
from tdiag.evidence.torch_ops import Calls, Dispatch, HostOps, Ops, SameInputs
from tdiag.evidence.training import (
    ClipCalls,
    DroppedGradients,
    EmbeddingTables,
    Flags,
    Gradients,
    Layers,
    Modules,
    Optimizers,
    Recomputations,
    Schedulers,
)
from tdiag.model.kind import Kind
from tdiag.model.notes import Captured, Note
from tdiag.probe.wire import (
    AGAIN,
    BASELINE,
    CALLS,
    OFF,
    OPS,
    SAMPLE,
    STANDARD,
    SYSCALLS,
    TRACE,
    WINDOWS,
)

CAPTURED, NOT_REQUESTED = Captured("captured"), Captured("not requested")
CUT_OFF = Captured("partial", "the program's own record breaks off")

# The evidence kinds from each window, to say why they are missing. The first kind shows whether the
# window recorded anything.
_KINDS_OF: dict[str, tuple[type[Kind], ...]] = {
    BASELINE: (Steps, Phases, Loaders, Modules, Optimizers, Schedulers, Gradients, Layers, Ddp,
               Startup, Inputs, Compiles, Threads, DebugVariables, Flags, Dispatch),
    SAMPLE: (Stacks, DroppedGradients),
    TRACE: (HostOps, TracedSteps, CompiledRegions, Work),
    CALLS: (Calls,),
    AGAIN: (SameInputs,),
    OPS: (Ops, ClipCalls, EmbeddingTables, PaddedLookups, Recomputations, MemoryGrowth),
    SYSCALLS: (Syscalls,),
}  # fmt: skip
_DEVICE = (DeviceTime, Kernels, Syncs, Transfers, Communication)


def say_capture(evidence: Evidence, lead: Process | None, config: Mapping[str, Any]) -> None:
    """Fill ``capture``, ``missing`` and the notes about failures, given the kinds in ``facts``."""
    wanted = config.get("windows") or STANDARD  # an older tdiag did not record it
    windows = lead.all(WindowRecord) if lead else []
    for window, kinds in _KINDS_OF.items():
        if evidence.get(kinds[0]) is not None or (window == TRACE and evidence.get(DeviceTime)):
            evidence.capture[window] = CUT_OFF if _cut_off(window, lead) else CAPTURED
        elif window not in wanted or (window == SAMPLE and config.get("sampler") == OFF):
            evidence.capture[window] = NOT_REQUESTED
        else:
            evidence.capture[window] = Captured("failed", _why(window, windows, evidence))
    no_samples = evidence.missing.get(Steps, "no samples")
    evidence.capture["system"] = (
        CAPTURED if evidence.get(System) else Captured("failed", no_samples)
    )
    for kind, reason in _reasons(evidence):
        if kind not in evidence.facts:
            evidence.missing.setdefault(kind, reason)
    evidence.notes += _notes(lead)


def _cut_off(window: str, lead: Process | None) -> bool:
    """Whether steps may be missing, because the process never recorded that it finished. A window's
    record is written as a whole, when the window ends."""
    return window == BASELINE and lead is not None and lead.last(FinishRecord) is None


def _why(window: str, windows: list[WindowRecord], evidence: Evidence) -> str:
    """Why this window recorded nothing."""
    mine = [w for w in windows if w.name == window]
    if window == SAMPLE and Stacks in evidence.missing:  # the judged rank is not the lead
        return evidence.missing[Stacks]
    if Steps in evidence.missing and (window == BASELINE or not mine):
        return evidence.missing[Steps]
    skipped = [w.why for w in mine if w.state == "skipped" and w.why]
    if skipped:
        return skipped[-1]
    if any(w.state == "end" for w in mine):
        return "its result could not be read"
    return "the run ended during it" if mine else "the run ended before it"


def _reasons(evidence: Evidence) -> Iterator[tuple[type[Kind], str]]:
    """For every kind, the reason it would be missing for."""
    for kind, window in ((kind, window) for window, kinds in _KINDS_OF.items() for kind in kinds):
        state = evidence.capture[window]
        if state.state in ("captured", "partial"):  # its window ran, without this part
            words = re.sub("(?<=[a-z])(?=[A-Z])", " ", kind.__name__).lower()
            yield kind, f"the probe recorded no {words}"
        elif state.why and state.why == evidence.missing.get(Steps):
            yield kind, state.why
        else:
            yield kind, f"{WINDOWS[window].absent}: {state.why or state.state}"
    for kind, window, why in (
        (SyncLines, OPS, "implicit synchronisations are only reported on CUDA"),
        *((kind, TRACE, "no device activity was traced") for kind in _DEVICE),
    ):
        state = evidence.capture[window]
        reason = state.why or state.state
        lost = (
            reason
            if reason == evidence.missing.get(Steps)
            else f"{WINDOWS[window].absent}: {reason}"
        )
        yield kind, why if state.state in ("captured", "partial") else lost
    yield System, evidence.missing.get(Steps, "the machine was not sampled")


def _notes(lead: Process | None) -> Iterator[Note]:
    if lead is None:
        return
    for fallback in lead.all(SamplerRecord)[-1:]:
        text = f"stacks were sampled in-process, workers unseen: {fallback.why}"
        yield Note("sampled-in-process", text)
    for failure in lead.all(FailureRecord)[:3]:
        text = f"tdiag's probe failed in {failure.where}: {failure.what}"
        yield Note("probe-failed", text, "warning")
    finish = lead.last(FinishRecord)
    if finish is None:
        text = "the program ended without letting the probe finish: the last steps may be missing"
        yield Note("cut-off", text, "warning")
    elif finish.why == "error":
        yield Note(
            "program-error", "the program ended with an error; judged by the steps before it"
        )
