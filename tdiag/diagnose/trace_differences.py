"""What changed from one trace to another: budget, kernels, ops and counts, per step.

Lists only noticeable differences. What one side did not record is reported as missing there, never
as zero.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from tdiag.evidence.device import DeviceParts, DeviceTime, Kernels, Syncs, Transfers
from tdiag.evidence.from_trace.device_work import TOP
from tdiag.evidence.from_trace.host_ops import TOP_OPS
from tdiag.evidence.memory import DeviceMemory
from tdiag.evidence.ranks import Communication
from tdiag.evidence.steps import TracedSteps
from tdiag.evidence.store import Evidence
from tdiag.evidence.torch_ops import HostOps
from tdiag.model.comparison import ChangeTable, Comparison, Difference
from tdiag.model.diagnosis import MINOR_FRAC, Diagnosis
from tdiag.model.kind import Kind
from tdiag.model.threshold import Threshold
from tdiag.rules.base import NOISE_FLOOR_FRAC

MINOR_BYTES = Threshold(
    64 * 1024,
    "bytes",
    "By arithmetic: 64 KiB take 5 µs at PCIe's 12 GB/s, about as long as issuing the copy, so"
    " only the count of smaller copies matters.",
)
ITEM = "aten::item"  # its runtime calls already count as synchronisations


@dataclass(frozen=True)
class TracedRun:
    """One trace and its diagnosis."""

    diagnosis: Diagnosis
    evidence: Evidence


@dataclass(frozen=True)
class _Listed:
    """ns per step by name; a name that is not listed takes at most ``rest_ns``."""

    times: Mapping[str, float]
    rest_ns: float = 0.0


def compare(before: TracedRun, after: TracedRun) -> Comparison:
    """Every noticeable difference, table by table."""
    sides = before.evidence, after.evidence
    steps = [side.diagnosis.step for side in (before, after)]
    lengths = [float(step.mean_ns) if step else 0.0 for step in steps]
    least = MINOR_FRAC * max(lengths)
    return Comparison(
        verdict_before=before.diagnosis.verdict.cls,
        verdict_after=after.diagnosis.verdict.cls,
        step=Difference("step", "ns", lengths[0], lengths[1]) if all(steps) else None,
        tables=(
            _times("Budget", sides, DeviceTime, [_budget(before), _budget(after)], least),
            _times("Kernel families", sides, Kernels, list(map(_families, sides)), least),
            _times("Kernels and copies", sides, DeviceParts, list(map(_kernels, sides)), least),
            _times("Ops by device time", sides, DeviceParts, list(map(_ops, sides)), least),
            _times("Ops by own host time", sides, HostOps, list(map(_host_ops, sides)), least),
            *_counts(sides),
        ),
        notes_before=tuple(note.text for note in before.diagnosis.notes),
        notes_after=tuple(note.text for note in after.diagnosis.notes),
    )


def _budget(side: TracedRun) -> _Listed | None:
    parts = {part.component: float(part.ns) for part in side.diagnosis.budget}
    return _Listed(parts) if parts else None


def _families(evidence: Evidence) -> _Listed | None:
    found = evidence.get(Kernels)
    return _Listed({x.family: x.device_ns for x in found.families}) if found else None


def _kernels(evidence: Evidence) -> _Listed | None:
    found = evidence.get(DeviceParts)
    return _listed([(x.name, x.device_ns) for x in found.kernels], TOP) if found else None


def _ops(evidence: Evidence) -> _Listed | None:
    found = evidence.get(DeviceParts)
    return _listed([(x.name, x.device_ns) for x in found.ops], TOP) if found else None


def _host_ops(evidence: Evidence) -> _Listed | None:
    found = evidence.get(HostOps)
    return _listed([(x.name, x.self_ns) for x in found.ops], TOP_OPS) if found else None


def _listed(parts: Sequence[tuple[str, float]], limit: int) -> _Listed | None:
    """The list; None if it is empty, because nothing was recorded. A full list was cut at
    ``limit``."""
    if not parts:
        return None
    return _Listed(dict(parts), parts[-1][1] if len(parts) >= limit else 0.0)


def _times(
    title: str,
    sides: tuple[Evidence, Evidence],
    kind: type[Kind],
    listed: list[_Listed | None],
    least: float,
) -> ChangeTable:
    """``kind``: the source of the lists; ``least``: the smallest change worth a line, ns."""
    before, after = listed
    if before is None or after is None:
        return ChangeTable(title=title, why=_lacking(sides, kind, listed))
    changes = [_change(name, before, after) for name in {**before.times, **after.times}]
    rows = [x for x in changes if abs(x.difference) >= least and not _noise(x)]
    rows.sort(key=lambda x: -abs(x.difference))
    return ChangeTable(title=title, rows=tuple(rows))


def _change(name: str, before: _Listed, after: _Listed) -> Difference:
    """A name missing from a cut list took at most as much as the list's last entry."""
    a, b = before.times.get(name), after.times.get(name)
    if a is None and b is not None and before.rest_ns:
        return Difference(name, "ns", min(before.rest_ns, b), b, "before")
    if b is None and a is not None and after.rest_ns:
        return Difference(name, "ns", a, min(after.rest_ns, a), "after")
    return Difference(name, "ns", a or 0.0, b or 0.0)


def _noise(change: Difference) -> bool:
    """Whether two runs of one program differ by as much."""
    return abs(change.difference) <= NOISE_FLOOR_FRAC * max(change.before, change.after)


def _lacking(
    sides: tuple[Evidence, Evidence], kind: type[Kind], listed: Iterable[object | None]
) -> str:
    """Which side has nothing to compare, and why; "" if neither."""
    reasons = {
        when: evidence.missing.get(kind, "not in the trace")
        for when, evidence, found in zip(("before", "now"), sides, listed, strict=True)
        if found is None
    }
    if len(reasons) == 2 and len(set(reasons.values())) == 1:
        return f"in neither trace: {next(iter(reasons.values()))}"
    return "; ".join(f"{when}: {why}" for when, why in reasons.items())


def _counts(sides: tuple[Evidence, Evidence]) -> Iterator[ChangeTable]:
    """New and vanished counts first, then by factor, largest first; then the counts that cannot be
    compared."""
    before, after = (counted(evidence) for evidence in sides)
    changes = [
        Difference(name, unit, value, after[name][1])
        for name, (unit, value) in before.items()
        if name in after
    ]
    covered = [found.count for e in sides if (found := e.get(TracedSteps))]
    # One event more or less at the edge of the traced steps is not a change; one step has no edges.
    edge = 1 / min(covered) if covered and min(covered) > 1 else 0.0
    least = {"count": edge, "bytes": float(MINOR_BYTES)}
    rows = [x for x in changes if abs(x.difference) > least[x.unit] and not _noise(x)]
    rows.sort(key=lambda x: (-_factor(x), -max(x.before, x.after)))
    if changes:
        yield ChangeTable(title="Counts", rows=tuple(rows))
    for title, kind in (("Counts of the device", DeviceTime), ("Counts of host ops", HostOps)):
        if why := _lacking(sides, kind, [evidence.get(kind) for evidence in sides]):
            yield ChangeTable(title=title, why=why)


def counted(evidence: Evidence) -> dict[str, tuple[Literal["bytes", "count"], float]]:
    """All counts by name; a count without its source is absent, not zero."""
    found: dict[str, tuple[Literal["bytes", "count"], float]] = {}
    if ops := evidence.get(HostOps):
        found["host ops, nested ones too"] = ("count", ops.total_per_step)
        found["host ops called from outside"] = ("count", ops.per_step)
    if device := evidence.get(DeviceTime):
        collectives = evidence.get(Communication)
        found["kernels"] = ("count", device.kernels_per_step)
        found["collectives"] = ("count", collectives.count if collectives else 0.0)
        if device.allocations_per_step is not None:
            found["cudaMalloc, cudaFree and the like"] = ("count", device.allocations_per_step)
    if syncs := evidence.get(Syncs):
        items = sum(x.count for x in syncs.syncs if x.name == ITEM)
        found["synchronisations"] = ("count", sum(x.count for x in syncs.syncs) - items)
        found["item() that waited"] = ("count", items)
    if transfers := evidence.get(Transfers):
        for direction, words in (("h2d", "host to device"), ("d2h", "device to host")):
            copies = [copy for copy in transfers.copies if copy.direction == direction]
            found[f"copies {words}"] = ("count", sum(copy.count for copy in copies))
            sizes = [copy.bytes for copy in copies if copy.bytes is not None]
            if len(sizes) == len(copies):
                found[f"bytes {words}"] = ("bytes", sum(sizes))
    if memory := evidence.get(DeviceMemory):
        found["peak memory allocated"] = ("bytes", memory.peak_allocated_bytes)
        found["peak memory reserved"] = ("bytes", memory.peak_reserved_bytes)
    return found


def _factor(change: Difference) -> float:
    """The larger ÷ the smaller; infinite for what is new or gone."""
    low, high = sorted((change.before, change.after))
    return high / low if low > 0 else float("inf")
