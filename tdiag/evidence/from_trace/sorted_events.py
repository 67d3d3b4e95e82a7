"""A trace's events by role, found by category and name, never by pid or tid."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from tdiag.evidence.from_trace.intervals import Mask, Spans, union
from tdiag.model.threshold import MAJORITY_FRAC, Threshold
from tdiag.trace import Trace

Rows = npt.NDArray[np.int64]

# Kineto's activity types (libkineto ActivityType.cpp), lower case, old spellings included.
DEVICE_CATEGORIES = frozenset({
    "kernel", "concurrent_kernel", "gpu_memcpy", "memcpy", "gpu_memset", "memset",
    "mtia_ccp_events",
})  # fmt: skip
HOST_CATEGORIES = frozenset({
    "cpu_op", "operator", "user_annotation", "gpu_user_annotation", "python_function",
    "external_correlation", "cpu_instant_event", "overhead", "trace", "cuda_sync", "cuda_event",
    "cuda_profiler_range", "collective_comm", "hpu_op", "mtia_counters", "mtia_insight",
    "gpu_pm_counter", "xpu_sync", "ac2g", "fwdbwd", "async", "",
})  # fmt: skip
RUNTIME = re.compile(r"(^|_)(runtime|driver)$")  # cuda_runtime, mtia_runtime, xpu_runtime, …
OP_CATEGORIES = frozenset({"cpu_op", "operator", "hpu_op"})
ANNOTATION_CATEGORIES = frozenset({"user_annotation"})
KERNEL_CATEGORIES = frozenset({"kernel", "concurrent_kernel"})
OLD_ANNOTATION = re.compile(r"ProfilerStep#|enumerate\(DataLoader\)|Optimizer\.|nccl:")
DEVICE_WORK = re.compile(r"kernel|memcpy|memset")

# Names of events that move data between devices; they count as busy even while they only wait.
COMMUNICATION = re.compile(
    r"nccl|rccl|oneccl|hccl|all_?reduce|all_?gather|reduce_?scatter|all_?to_?all|multimem|"
    r"deep_?ep|dpsk::ep|nvshmem|userbuffers|cross_device|(one|two)_shot|symm_?mem|Memcpy PtoP",
    re.IGNORECASE,
)
# Level Zero: M is system memory, H memory allocated for sharing with the device.
HOST_TO_DEVICE = re.compile(r"HtoD|Host ?To ?Device|Host -> Device|H2D|\(M2D\)", re.IGNORECASE)
DEVICE_TO_HOST = re.compile(r"DtoH|Device ?To ?Host|Device -> Host|D2H|\(D2M\)", re.IGNORECASE)
# Accelerators that record waiting on their own queue as work (MTIA: event_wait).
DEVICE_WAIT = re.compile(r"(^|_)(event_)?wait|synchroni[sz]e", re.IGNORECASE)

MOVED = re.compile(r"memcpy|memset", re.IGNORECASE)  # categories of the copy engines' work

COMPUTE, COMM, H2D, D2H = range(4)


@dataclass(frozen=True)
class TraceView:
    """Row numbers of ``trace`` by role. ``work_kind``: COMPUTE, COMM, H2D or D2H per ``work``."""

    trace: Trace
    work: Rows  # what the device executed: kernels, copies, memsets
    work_kind: npt.NDArray[np.int8]
    runtime: Rows  # calls into the device's runtime and driver
    ops: Rows  # cpu_op: dispatched ops and autograd nodes
    annotations: Rows  # ProfilerStep, DataLoader, Optimizer.step, record_function

    def spans(self, rows: Rows) -> Spans:
        """The intervals covered by these events."""
        return union(self.trace.ts_ns[rows], self.trace.ends(rows))

    def of_kind(self, *kinds: int) -> Rows:
        return self.work[np.isin(self.work_kind, kinds)]

    def matching(self, rows: Rows, pattern: re.Pattern[str]) -> Rows:
        """Those of ``rows`` whose name contains the pattern."""
        return rows[self.trace.named(rows, pattern.search)]

    @cached_property
    def kernels(self) -> Rows:
        """Compute and communication kernels: the work without copies and memsets."""
        moved = np.array([bool(MOVED.search(c)) for c in self.trace.categories] or [False])
        rows = self.of_kind(COMPUTE, COMM)
        kernels: Rows = rows[~moved[self.trace.category[rows]]]
        return kernels

    @cached_property
    def launch(self) -> Rows:
        """Per ``work`` row the runtime call that issued it (same correlation), −1 if unknown."""
        keys = self.trace.correlation[self.runtime]
        calls = self.runtime[keys > 0]
        order = np.argsort(keys[keys > 0], kind="stable")
        calls = calls[order]
        keys = self.trace.correlation[calls]
        wanted = self.trace.correlation[self.work]
        if not len(calls):
            return np.full(len(wanted), -1, np.int64)
        at = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
        return np.where((keys[at] == wanted) & (wanted > 0), calls[at], -1)

    def launched_by(self, rows: Rows) -> Rows:
        """The runtime call that issued each of these ``work`` rows, −1 if unknown."""
        return self.launch[np.searchsorted(self.work, rows)]


def view(trace: Trace) -> TraceView:
    """Sort the events of ``trace`` by role."""
    work = _of_category(trace, _device_categories(trace).__contains__)
    kernels = _of_category(trace, KERNEL_CATEGORIES.__contains__)
    work = work[~trace.named(work, DEVICE_WAIT.search) | np.isin(work, kernels)]
    ops = _of_category(trace, OP_CATEGORIES.__contains__)
    notes = _of_category(trace, ANNOTATION_CATEGORIES.__contains__)
    filed_as_ops = trace.named(ops, OLD_ANNOTATION.match)  # before torch 1.11
    return TraceView(
        trace,
        work,
        _kinds(trace, work),
        _of_category(trace, RUNTIME.search),
        ops[~filed_as_ops],
        np.union1d(notes, ops[filed_as_ops]),
    )


def queue_of(trace: Trace, rows: Rows) -> Rows:
    """A number for each of these events; equal for events on the same stream of the same device."""
    number: Rows = (trace.device[rows].astype(np.int64) << 32) + trace.stream[rows]
    return number


def _of_category(trace: Trace, matches: Callable[[str], object]) -> Rows:
    """Events whose category, in lower case, matches."""
    answers = [bool(matches(category.lower())) for category in trace.categories]
    return np.flatnonzero(np.array(answers or [False])[trace.category])


def _device_categories(trace: Trace) -> set[str]:
    found = set(DEVICE_CATEGORIES)
    for number, spelled in enumerate(trace.categories):
        category = spelled.lower()
        if category in HOST_CATEGORIES or RUNTIME.search(category):
            continue
        # An accelerator tdiag does not know: its work is named like this, or has a stream.
        streams = trace.stream[trace.category == number]
        if DEVICE_WORK.search(category) or (len(streams) and (streams >= 0).mean() > MAJORITY_FRAC):
            found.add(category)
    return found


def _kinds(trace: Trace, work: Rows) -> npt.NDArray[np.int8]:
    kinds = np.full(len(work), COMPUTE, np.int8)
    kinds[trace.named(work, DEVICE_TO_HOST.search)] = D2H
    kinds[trace.named(work, HOST_TO_DEVICE.search)] = H2D
    kinds[trace.named(work, COMMUNICATION.search)] = COMM
    return kinds


PROCESS_FRAC = Threshold(
    0.05,
    "of the ops and runtime calls",
    "Heuristic: a second process of a trace has many of its own; with fewer it trains nothing.",
)


def one_process(view: TraceView) -> tuple[TraceView, str]:
    """The process with the most ops, and a note on the others; unchanged and "" if there is one.

    Correlation ids are counted per process, so two processes use the same numbers. Device work
    belongs to the process whose call with the same id preceded it most closely.
    """
    pids = sorted(_pids(view, view.ops) & _pids(view, view.runtime), key=str)
    if len(pids) < 2:
        return view, ""
    counts = Counter({pid: int(_of(view, view.ops, pid).sum()) for pid in pids})
    chosen = max(pids, key=lambda pid: counts[pid])
    mine = _work_of(view, pids, chosen)
    note = (
        f"the trace holds {len(pids)} processes ({', '.join(map(str, pids))}): tdiag analyses"
        f" {chosen}, which has the most ops"
    )
    return replace(
        view,
        work=view.work[mine],
        work_kind=view.work_kind[mine],
        runtime=view.runtime[_of(view, view.runtime, chosen)],
        ops=view.ops[_of(view, view.ops, chosen)],
        annotations=view.annotations[_of(view, view.annotations, chosen)],
    ), note


def _pids(view: TraceView, rows: Rows) -> set[Any]:
    """Processes with a noticeable share of these events."""
    lanes = np.bincount(view.trace.lane[rows], minlength=len(view.trace.lanes))
    counts: Counter[Any] = Counter()
    for (pid, _), count in zip(view.trace.lanes, lanes.tolist(), strict=True):
        counts[pid] += count
    return {pid for pid, count in counts.items() if count > PROCESS_FRAC * len(rows)}


def _of(view: TraceView, rows: Rows, pid: Any) -> Mask:
    """Which of these events belong to the process."""
    mine = np.array([lane[0] == pid for lane in view.trace.lanes])
    found: Mask = mine[view.trace.lane[rows]]
    return found


def _work_of(view: TraceView, pids: list[Any], chosen: Any) -> Mask:
    """Which of ``view.work`` the chosen process issued, for each device, plus the work of devices
    for which no process is known to have launched anything."""
    delays = {pid: _delays(view, pid) for pid in pids}
    devices = view.trace.device[view.work]
    mine = np.zeros(len(view.work), np.bool_)
    for device in np.unique(devices).tolist():
        there = devices == device
        usual = {pid: float(np.median(delay[there])) for pid, delay in delays.items()}
        mine |= there & (usual[chosen] <= min(usual.values()))
    return mine


def _delays(view: TraceView, pid: Any) -> npt.NDArray[np.float64]:
    """For each of ``view.work`` how long after the process's call with the same id it began, ns;
    infinite if there is no such call or it came later."""
    trace = view.trace
    calls = view.runtime[_of(view, view.runtime, pid)]
    calls = calls[np.argsort(trace.correlation[calls], kind="stable")]
    keys, wanted = trace.correlation[calls], trace.correlation[view.work]
    at = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    delay = (trace.ts_ns[view.work] - trace.ts_ns[calls[at]]).astype(np.float64)
    delay[(keys[at] != wanted) | (wanted <= 0) | (delay < 0)] = np.inf
    return delay
