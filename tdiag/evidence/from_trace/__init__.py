"""The evidence that a trace alone gives. One file per family of facts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tdiag.evidence.compiling import CompiledRegions
from tdiag.evidence.data_sheets import roof_of
from tdiag.evidence.device import Device, DeviceParts, DeviceTime, Kernels, Syncs, Transfers
from tdiag.evidence.feeding import TracedFetches
from tdiag.evidence.from_trace.compiled_regions import compiled_regions
from tdiag.evidence.from_trace.copies_and_syncs import allocator_calls, syncs, transfers
from tdiag.evidence.from_trace.device_time import busy_spans, device_time, host_states, idle_causes
from tdiag.evidence.from_trace.device_work import device_memory, device_of, device_parts, kernels
from tdiag.evidence.from_trace.fetching import traced_fetches
from tdiag.evidence.from_trace.host_ops import Phase, host_ops, matrix_ops
from tdiag.evidence.from_trace.intervals import NOTHING, Spans
from tdiag.evidence.from_trace.median_step import step_events, timeline
from tdiag.evidence.from_trace.nesting import Nested, nest
from tdiag.evidence.from_trace.python_stacks import PythonStacks
from tdiag.evidence.from_trace.ranks_of_traces import communication
from tdiag.evidence.from_trace.replaying import Unexplained, replay
from tdiag.evidence.from_trace.sorted_events import TraceView, one_process, view
from tdiag.evidence.from_trace.window import TracedWindow, find_window
from tdiag.evidence.from_trace.work import work
from tdiag.evidence.memory import AllocatorCalls, DeviceMemory
from tdiag.evidence.ranks import Communication
from tdiag.evidence.replay import Replay
from tdiag.evidence.roofline import Roof, Work
from tdiag.evidence.steps import StepEvents, TracedSteps
from tdiag.evidence.store import Evidence
from tdiag.evidence.torch_ops import HostOps, MatrixOps
from tdiag.model.kind import Kind
from tdiag.model.notes import Note
from tdiag.model.threshold import NOTICEABLE_FRAC
from tdiag.model.timeline import Timeline
from tdiag.trace import Trace

__all__ = ["device_evidence"]

ON_HOST: tuple[type[Kind], ...] = (
    *(TracedSteps, Timeline, StepEvents, HostOps, CompiledRegions, MatrixOps, Work),
    TracedFetches,
)
ON_DEVICE: tuple[type[Kind], ...] = (
    *(Device, DeviceTime, Transfers, Syncs, Kernels, Communication),
    *(DeviceParts, DeviceMemory, AllocatorCalls, Replay),
)


def device_evidence(
    trace: Trace, phases: Sequence[Phase] = (), steps: Sequence[int] = ()
) -> Evidence:
    """All evidence the trace supports; ``missing`` gives the reason for the rest.

    ``phases``: ``(name, start_ns, end_ns)`` of the host phases (keys of ``Phases.wall_ns``) and
    ``steps``: step boundaries, both on the trace's own clock (``trace.ts_ns``), where the caller
    knows them. Kinds: TracedSteps, Timeline, StepEvents, HostOps, CompiledRegions, MatrixOps, Work,
    TracedFetches;
    of a device DeviceTime, Transfers, Syncs, Kernels, Communication, DeviceParts, Replay,
    DeviceMemory, AllocatorCalls.
    """
    evidence = Evidence()
    if damage := trace.damage.describe():
        evidence.note("trace-damaged", damage, "warning")
    seen, others = one_process(view(trace))
    if others:
        evidence.note("one-process-of-many", others)
    window = find_window(seen, steps)
    if window is None:
        why = "the trace holds no host and no device events"
        evidence.missing = dict.fromkeys((*ON_HOST, *ON_DEVICE), why)
        return evidence
    evidence.add(window.traced_steps())
    evidence.notes += _notes(seen, window)
    ops = nest(trace, window.began(seen, seen.ops))
    _put(evidence, HostOps, host_ops(seen, ops, window, phases), "the trace holds no host ops")
    regions = compiled_regions(seen, ops, window)
    _put(evidence, CompiledRegions, regions, "no compiled code ran in the traced steps")
    matrices = matrix_ops(seen, ops, window)
    _put(evidence, MatrixOps, matrices, "no shapes were recorded (record_shapes=True)")
    stacks = PythonStacks(seen)
    found = work(seen, ops, window, stacks, phases)
    _put(evidence, Work, found, "no shapes were recorded (record_shapes=True)")
    states = host_states(seen, window, phases)
    evidence.add(timeline(seen, window, states))
    sampled = "the trace holds only a sample of the events"
    _put(evidence, StepEvents, step_events(seen, window, states, phases), sampled)
    fetches = traced_fetches(seen, window, stacks)
    _put(evidence, TracedFetches, fetches, "the trace annotates no request for a batch")
    _on_device(evidence, seen, ops, stacks, window, states)
    return evidence


def _on_device(
    evidence: Evidence,
    seen: TraceView,
    ops: Nested,
    stacks: PythonStacks,
    window: TracedWindow,
    states: dict[str, Spans],
) -> None:
    busy = busy_spans(seen, window)
    if not len(busy):
        why = "no device activity was captured in the trace"
        evidence.missing |= dict.fromkeys(ON_DEVICE, why)
        return
    idle = idle_causes(seen, window, busy, states)
    device = device_of(seen)
    roof = roof_of(device.name)
    _put(
        evidence, Roof, roof, f"the rates of {device.name or 'this device'} are not known to tdiag"
    )
    evidence.add(
        device,
        device_time(seen, window, idle, states),
        transfers(seen, window, stacks),
        syncs(seen, window, idle, ops, stacks),
        device_parts(seen, ops, stacks, window),
    )
    try:
        evidence.add(replay(seen, window, states))
    except Unexplained as why:
        evidence.missing[Replay] = str(why)
    memory = device_memory(seen, window)
    _put(evidence, DeviceMemory, memory, "no allocator events of a device (profile_memory=True)")
    calls = allocator_calls(seen, window)
    _put(evidence, AllocatorCalls, calls, "the trace holds no runtime calls")
    updates = states.get("optimizer", NOTHING)
    _put(evidence, Kernels, kernels(seen, window, updates), "no kernels ran in the traced steps")
    _put(
        evidence,
        Communication,
        communication(seen, window),
        "no communication ran on the device in the traced steps",
    )


def _put(evidence: Evidence, kind: type[Kind], found: Kind | None, why: str) -> None:
    if found is None:
        evidence.missing[kind] = why
    else:
        evidence.add(found)


def _notes(seen: TraceView, window: TracedWindow) -> Iterator[Note]:
    if window.warm_up:
        steps = f"{window.warm_up} warm-up step{'s' * (window.warm_up > 1)}"
        yield Note("warm-up", f"set aside: {steps} at the start of the trace")
    if window.found_by == "span":
        yield Note(
            "no-steps-marked",
            "the trace marks no steps: it counts as one step, in which warm-up may dominate",
            "warning",
        )
    if window.head_ns > NOTICEABLE_FRAC * (window.end - window.begin):
        before = f"{window.head_ns / 1e6:,.1f} ms before the first device work"
        yield Note("head", f"set aside: {before}, which nothing in the trace explains")
    if window.sampled:
        yield Note(
            "host-events-missing",
            "most host events are missing from the trace (it was sampled): device idle time"
            " cannot be attributed",
            "warning",
        )
    unlaunched = int((seen.launch < 0).sum())
    if len(seen.runtime) and unlaunched:
        text = f"{unlaunched:,} device events were launched outside the traced window"
        yield Note("launched-outside", text)
