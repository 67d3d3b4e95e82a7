"""What a page draws beside the diagnosis: the run over its time, trees, tables, source lines.

Each field is as measured, or None; ``missing`` then says why. A report reads this and the
diagnosis, never the evidence.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from tdiag.diagnose.ranks import known_straggler
from tdiag.evidence.device import DeviceParts, HostOps, Ranks, TracedSteps
from tdiag.evidence.history import CallTrees, History, StepEvents, StepHistory
from tdiag.evidence.kinds import Calls, Ops, Stacks
from tdiag.evidence.sources import Excerpt, excerpt
from tdiag.evidence.store import Evidence
from tdiag.model.diagnosis import Diagnosis
from tdiag.model.kind import Kind

_KINDS: dict[str, type[Kind]] = {
    "steps": StepHistory,
    "traced_steps": TracedSteps,
    "step_events": StepEvents,
    "call_trees": CallTrees,
    "system": History,
    "stacks": Stacks,
    "calls": Calls,
    "op_lines": Ops,
    "host_ops": HostOps,
    "device_parts": DeviceParts,
    "ranks": Ranks,
}


class Details(msgspec.Struct, frozen=True, kw_only=True):
    """``missing``: field → why it is None. ``late_rank``: whom the other ranks wait for.
    ``excerpts``: one each place of a finding, where its file can be read."""

    steps: StepHistory | None = None
    traced_steps: TracedSteps | None = None
    step_events: StepEvents | None = None
    call_trees: CallTrees | None = None
    system: History | None = None
    stacks: Stacks | None = None
    calls: Calls | None = None
    op_lines: Ops | None = None
    host_ops: HostOps | None = None
    device_parts: DeviceParts | None = None
    ranks: Ranks | None = None
    late_rank: int | None = None
    excerpts: tuple[Excerpt, ...] = ()
    missing: dict[str, str] = {}


def details_of(
    evidence: Evidence, diagnosis: Diagnosis, recorded_unix_ns: int | None = None
) -> Details:
    """``recorded_unix_ns``: when the run began, to tell whether its files have changed since."""
    found = {name: evidence.get(kind) for name, kind in _KINDS.items()}
    late = known_straggler(evidence.get(Ranks))
    missing = {
        name: evidence.missing.get(kind, "") for name, kind in _KINDS.items() if found[name] is None
    }
    return Details(
        **{name: fact for name, fact in found.items() if fact is not None},  # type: ignore[arg-type]
        late_rank=late.rank.rank if late else None,
        excerpts=tuple(_excerpts(diagnosis, recorded_unix_ns)),
        missing=missing,
    )


def _excerpts(diagnosis: Diagnosis, recorded_unix_ns: int | None) -> Iterator[Excerpt]:
    places = {f.location for f in diagnosis.findings if f.location is not None}
    for place in sorted(places, key=lambda p: (p.file, p.line)):
        if found := excerpt(place.file, place.line, recorded_unix_ns):
            yield found
