"""A file that holds several processes: only one of them is analysed."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from tdiag.evidence.from_trace.intervals import Mask
from tdiag.evidence.from_trace.view import Rows, View

# Another process has ops and runtime calls of its own. What has less of both is no training.
LEAST_FRAC = 0.05


def one_process(view: View) -> tuple[View, str]:
    """The process with most ops, and a note on the others; all of it and "" where there is one.

    Correlation ids are counted in each process, so that those of two are the same numbers: a
    device's work belongs to the process whose calls of the same ids it followed soonest.
    """
    pids = sorted(_pids(view, view.ops) & _pids(view, view.runtime), key=str)
    if len(pids) < 2:
        return view, ""
    counts = Counter({pid: int(_of(view, view.ops, pid).sum()) for pid in pids})
    chosen = max(pids, key=lambda pid: counts[pid])
    mine = _work_of(view, pids, chosen)
    note = (
        f"the trace holds {len(pids)} processes ({', '.join(map(str, pids))}): analysed is"
        f" {chosen}, which has most ops"
    )
    return replace(
        view,
        work=view.work[mine],
        work_kind=view.work_kind[mine],
        runtime=view.runtime[_of(view, view.runtime, chosen)],
        ops=view.ops[_of(view, view.ops, chosen)],
        annotations=view.annotations[_of(view, view.annotations, chosen)],
    ), note


def _pids(view: View, rows: Rows) -> set[Any]:
    """Processes with a noticeable share of these events."""
    lanes = np.bincount(view.trace.lane[rows], minlength=len(view.trace.lanes))
    counts: Counter[Any] = Counter()
    for (pid, _), count in zip(view.trace.lanes, lanes.tolist(), strict=True):
        counts[pid] += count
    return {pid for pid, count in counts.items() if count > LEAST_FRAC * len(rows)}


def _of(view: View, rows: Rows, pid: Any) -> Mask:
    """Which of these events are of the process."""
    mine = np.array([lane[0] == pid for lane in view.trace.lanes])
    found: Mask = mine[view.trace.lane[rows]]
    return found


def _work_of(view: View, pids: list[Any], chosen: Any) -> Mask:
    """Which ``view.work`` the chosen process issued, told device by device; also that of devices
    which no process is known to have launched for."""
    delays = {pid: _delays(view, pid) for pid in pids}
    devices = view.trace.device[view.work]
    mine = np.zeros(len(view.work), np.bool_)
    for device in np.unique(devices).tolist():
        there = devices == device
        usual = {pid: float(np.median(delay[there])) for pid, delay in delays.items()}
        mine |= there & (usual[chosen] <= min(usual.values()))
    return mine


def _delays(view: View, pid: Any) -> npt.NDArray[np.float64]:
    """For each ``view.work`` how long after the process's call of the same id it began, ns;
    infinite where there is none, or it came later."""
    trace = view.trace
    calls = view.runtime[_of(view, view.runtime, pid)]
    calls = calls[np.argsort(trace.correlation[calls], kind="stable")]
    keys, wanted = trace.correlation[calls], trace.correlation[view.work]
    at = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    delay = (trace.ts_ns[view.work] - trace.ts_ns[calls[at]]).astype(np.float64)
    delay[(keys[at] != wanted) | (wanted <= 0) | (delay < 0)] = np.inf
    return delay
