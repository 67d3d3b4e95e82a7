"""A trace's events by what they are, told by category and name, never by pid or tid."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from tdiag.evidence.from_trace.intervals import Ints, Spans, union
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
    "gpu_pm_counter", "ac2g", "fwdbwd", "async", "",
})  # fmt: skip
RUNTIME = re.compile(r"(^|_)(runtime|driver)$")  # cuda_runtime, mtia_runtime, xpu_runtime, …
OP_CATEGORIES = frozenset({"cpu_op", "operator", "hpu_op"})
ANNOTATION_CATEGORIES = frozenset({"user_annotation", "operator"})

# Names of what moves data between devices; it counts as busy even while it only waits.
COMMUNICATION = re.compile(
    r"nccl|rccl|oneccl|hccl|all_?reduce|all_?gather|reduce_?scatter|all_?to_?all|multimem|"
    r"deep_?ep|dpsk::ep|nvshmem|userbuffers|cross_device|(one|two)_shot|symm_?mem|Memcpy PtoP",
    re.IGNORECASE,
)
HOST_TO_DEVICE = re.compile(r"HtoD|Host ?To ?Device|Host -> Device|H2D", re.IGNORECASE)
DEVICE_TO_HOST = re.compile(r"DtoH|Device ?To ?Host|Device -> Host|D2H", re.IGNORECASE)
# Accelerators that record waiting on their own queue among their work (MTIA: event_wait).
DEVICE_WAIT = re.compile(r"(^|_)(event_)?wait|synchroni[sz]e", re.IGNORECASE)

MOVED = re.compile(r"memcpy|memset", re.IGNORECASE)  # categories of the copy engines' work

COMPUTE, COMM, H2D, D2H = range(4)


@dataclass(frozen=True)
class View:
    """Row numbers of ``trace`` by role. ``work_kind``: COMPUTE, COMM, H2D or D2H per ``work``."""

    trace: Trace
    work: Rows  # what the device executed: kernels, copies, memsets
    work_kind: npt.NDArray[np.int8]
    runtime: Rows  # calls into the device's runtime and driver
    ops: Rows  # cpu_op: dispatched ops and autograd nodes
    annotations: Rows  # ProfilerStep, DataLoader, Optimizer.step, record_function

    def spans(self, rows: Rows) -> Spans:
        """The instants covered by these events."""
        return union(self.trace.ts_ns[rows], self.trace.end_ns[rows])

    def of_kind(self, *kinds: int) -> Rows:
        return self.work[np.isin(self.work_kind, kinds)]

    def matching(self, rows: Rows, pattern: re.Pattern[str]) -> Rows:
        """Those of ``rows`` whose name contains the pattern."""
        return rows[self.trace.named(pattern.search)[self.trace.name[rows]]]

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
        """The runtime call that issued each of these ``work`` rows, −1 where unknown."""
        return self.launch[np.searchsorted(self.work, rows)]


def view(trace: Trace) -> View:
    """Sort the events of ``trace`` by role."""
    lower = [category.lower() for category in trace.categories]
    device = np.array([_is_device(trace, i, name) for i, name in enumerate(lower)] or [False])
    runtime = np.array([bool(RUNTIME.search(name)) for name in lower] or [False])
    ops = np.array([name in OP_CATEGORIES for name in lower] or [False])
    notes = np.array([name in ANNOTATION_CATEGORIES for name in lower] or [False])
    work = np.flatnonzero(device[trace.category])
    waits = trace.named(DEVICE_WAIT.search)
    kernels = np.array([name in ("kernel", "concurrent_kernel") for name in lower] or [False])
    work = work[~waits[trace.name[work]] | kernels[trace.category[work]]]
    annotated = trace.named(ANNOTATION.match)  # old traces file these under Operator
    op_rows = np.flatnonzero(ops[trace.category])
    note_rows = np.flatnonzero(notes[trace.category])
    old = np.array([name == "operator" for name in lower] or [False])
    return View(
        trace,
        work,
        _kinds(trace)[trace.name[work]],
        np.flatnonzero(runtime[trace.category]),
        op_rows[~annotated[trace.name[op_rows]]],
        note_rows[~old[trace.category[note_rows]] | annotated[trace.name[note_rows]]],
    )


ANNOTATION = re.compile(r"ProfilerStep#|enumerate\(DataLoader\)|Optimizer\.|nccl:")


def _is_device(trace: Trace, number: int, name: str) -> bool:
    if name in DEVICE_CATEGORIES:
        return True
    if name in HOST_CATEGORIES or RUNTIME.search(name):
        return False
    # An accelerator unknown to us: its work has a stream.
    rows = trace.category == number
    return bool((trace.stream[rows] >= 0).mean() > 0.5)


def _kinds(trace: Trace) -> npt.NDArray[np.int8]:
    """Kind of work per distinct name."""
    kinds = np.full(len(trace.names), COMPUTE, np.int8)
    for number, name in enumerate(trace.names):
        if COMMUNICATION.search(name):
            kinds[number] = COMM
        elif HOST_TO_DEVICE.search(name):
            kinds[number] = H2D
        elif DEVICE_TO_HOST.search(name):
            kinds[number] = D2H
    return kinds


def ends(view: View, rows: Rows) -> tuple[Ints, Ints]:
    """Start and end of these events, ns."""
    return view.trace.ts_ns[rows], view.trace.end_ns[rows]
