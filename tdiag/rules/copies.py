"""Sums over copies between host and device, which the transfer rules share."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from tdiag.evidence.device import Copy, DeviceTime
from tdiag.evidence.kinds import Budget
from tdiag.model.diagnosis import Measure
from tdiag.rules.measures import bytes_, count, ns


def exposed(copies: Sequence[Copy], budget: Budget, device: DeviceTime) -> float:
    """Time of these copies that no compute overlaps, ns per clean step (traced ones are longer)."""
    return sum(copy.exposed_ns for copy in copies) * budget.step_ns / device.step_ns


def merged(copies: Sequence[Copy]) -> Copy:
    """All of them as one, at the place of the one that costs most; there must be one."""
    worst = max(copies, key=lambda copy: copy.exposed_ns)
    sizes = [copy.bytes for copy in copies]
    return replace(
        worst,
        count=sum(copy.count for copy in copies),
        bytes=None if None in sizes else sum(size or 0.0 for size in sizes),
        device_ns=sum(copy.device_ns for copy in copies),
        exposed_ns=sum(copy.exposed_ns for copy in copies),
        host_blocked_ns=sum(copy.host_blocked_ns for copy in copies),
    )


def copy_measures(copy: Copy) -> tuple[Measure, ...]:
    measures = [
        ns("copies not overlapped by compute", copy.exposed_ns, "trace"),
        ns("copies, device time", copy.device_ns, "trace"),
        count("copies", copy.count, "trace", "per_step"),
    ]
    if copy.bytes is not None:
        measures.append(bytes_("copied per step", copy.bytes, "trace"))
        if copy.device_ns:
            measures.append(count("bandwidth", copy.bytes / copy.device_ns, "trace", "gb_per_s"))
    return tuple(measures)
