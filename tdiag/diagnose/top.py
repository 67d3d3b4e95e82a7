"""The largest parts of a traced step: kernels, ops, modules, functions."""

from __future__ import annotations

from collections.abc import Iterator

from tdiag.evidence.device import DevicePart, DeviceParts
from tdiag.evidence.steps import Steps, TracedSteps
from tdiag.evidence.store import Evidence
from tdiag.evidence.torch_ops import HostOps
from tdiag.model.diagnosis import Origin, Part, Top
from tdiag.model.threshold import Threshold

TOP_PARTS = Threshold(
    10, "parts of each kind", "Heuristic: no part beyond the first ten is worth changing first."
)


def top_parts(evidence: Evidence) -> Iterator[Top]:
    """The largest parts in the trace, device work first."""
    if found := evidence.get(DeviceParts):
        total = sum(part.device_ns for part in found.kernels)
        named: tuple[tuple[Origin, tuple[DevicePart, ...]], ...] = (
            ("kernels", found.kernels),
            ("ops", found.ops),
            ("modules", found.modules),
            ("functions", found.functions),
        )
        for of, parts in named:
            rows = tuple(_part(x) for x in parts[: int(TOP_PARTS)])
            if rows:
                yield Top(of=of, total_ns=total, parts=rows)
    if ops := evidence.get(HostOps):
        scale = _to_clean(evidence)
        top = ops.ops[: int(TOP_PARTS)]
        rows = tuple(Part(x.name, x.count, x.self_ns * scale) for x in top)
        total = sum(x.self_ns for x in ops.ops) * scale
        yield Top(of="host_ops", total_ns=total, parts=rows, scaled=scale != 1.0)


def _to_clean(evidence: Evidence) -> float:
    """The clean step ÷ the traced one; 1 for a bare trace."""
    clean, traced = evidence.get(Steps), evidence.get(TracedSteps)
    if clean is None or traced is None or not traced.mean_ns:
        return 1.0
    return clean.mean_ns / traced.mean_ns


def _part(found: DevicePart) -> Part:
    if (at := found.at) is None:
        return Part(found.name, found.count, found.device_ns)
    return Part(at.function, found.count, found.device_ns, at)
