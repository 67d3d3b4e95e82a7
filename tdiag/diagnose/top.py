"""The largest parts of a traced step: kernels, ops, modules, functions."""

from __future__ import annotations

from collections.abc import Iterator

from tdiag.diagnose.model import Origin, Part, Place, Top
from tdiag.evidence import device
from tdiag.evidence.store import Evidence

TOP_PARTS = 10  # of each: beyond, no part is worth changing first


def top_parts(evidence: Evidence) -> Iterator[Top]:
    """Those that the trace tells, device work first."""
    if found := evidence.get(device.DeviceParts):
        total = sum(part.device_ns for part in found.kernels)
        named: tuple[tuple[Origin, tuple[device.Part, ...]], ...] = (
            ("kernels", found.kernels),
            ("ops", found.ops),
            ("modules", found.modules),
            ("functions", found.functions),
        )
        for of, parts in named:
            rows = tuple(_part(x) for x in parts[:TOP_PARTS])
            if rows:
                yield Top(of=of, total_ns=total, parts=rows)
    if ops := evidence.get(device.HostOps):
        rows = tuple(Part(x.name, x.count, x.self_ns) for x in ops.ops[:TOP_PARTS])
        yield Top(of="host_ops", total_ns=sum(x.self_ns for x in ops.ops), parts=rows)


def _part(found: device.Part) -> Part:
    if (at := found.at) is None:
        return Part(found.name, found.count, found.device_ns)
    return Part(at.function, found.count, found.device_ns, Place(at.file, at.line))
