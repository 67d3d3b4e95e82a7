"""Host ops of the trace by name, as ``key_averages().table()`` of torch.profiler has them."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import RenderableType

from tdiag.evidence.device import DeviceParts, HostOp, HostOps, Part, TracedSteps
from tdiag.evidence.store import Evidence
from tdiag.report.page import Page, heading
from tdiag.tables.grid import absent, cost, first, grid, more, note
from tdiag.units import count, duration, percent, plural

HOW = "`tdiag run` records a trace after the clean steps: let the script take more of them."
NONE = "–"


def parts(evidence: Evidence, page: Page) -> Iterable[RenderableType]:
    """Calls, own and total CPU time and, where one was traced, device time, all per traced step.

    Own time leaves out the ops called inside; device time is the sum of the kernels and copies
    that the op itself launched. Shares are of the mean traced step. Largest own or device time
    first.
    """
    ops, steps = evidence.get(HostOps), evidence.get(TracedSteps)
    if ops is None or steps is None:
        yield from absent("host ops", HostOps, evidence, HOW)
        return
    device = evidence.get(DeviceParts)
    launched = {part.name: part for part in device.ops} if device else {}
    ordered = sorted(ops.ops, key=lambda op: -max(op.self_ns, _device_ns(op, launched)))
    step_ns = float(steps.mean_ns)
    header = ["op", "calls", "own CPU", "share", "total CPU"]
    header += ["device", "share"] if device else []
    rows = []
    for op in first(ordered, page):
        row = [op.name, count(op.count), *_of_step(op.self_ns, step_ns), duration(op.total_ns)]
        rows.append(row + (_of_step(_device_ns(op, launched), step_ns) if device else []))
    taken = f"{plural(steps.count, 'traced step')}, {duration(steps.mean_ns)} each"
    yield from heading("Ops, per step", taken, page)
    yield grid(header, 1, rows, page)
    yield from more(len(ordered) - len(rows), "op")
    yield note(
        "Own CPU time is without the ops called inside. Shares are of the traced step. All times"
        f" hold what torch.profiler adds ({cost('trace', evidence)}).",
        "Device time is of what the op itself launched." if device else "",
    )


def _device_ns(op: HostOp, launched: dict[str, Part]) -> float:
    part = launched.get(op.name)
    return part.device_ns if part else 0.0


def _of_step(ns: float, step_ns: float) -> list[str]:
    if not ns:
        return [NONE, NONE]
    return [duration(ns), percent(ns / step_ns) if step_ns else NONE]
