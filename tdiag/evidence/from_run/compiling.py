"""What dynamo compiled, and how much of it in the clean window."""

from __future__ import annotations

from tdiag.evidence.from_run.events import Process
from tdiag.evidence.from_run.places import location
from tdiag.evidence.from_run.records import WindowRecord
from tdiag.evidence.training import Compiles, Recompiled
from tdiag.probe.wire import BASELINE


def make_compiles(lead: Process) -> Compiles | None:
    """None where dynamo compiled nothing, or no clean window ended."""
    windows = [w for w in lead.all(WindowRecord) if w.name == BASELINE]
    end = next((w for w in reversed(windows) if w.state == "end"), None)
    if end is None or end.compiles is None or not end.compiles[0]:
        return None
    frames, again, ns = end.compiles
    begin = next(w for w in windows if w.state == "begin" and w.number == end.number)
    before = begin.compiles or (0, 0, 0)
    steps = max(1, end.step - begin.step)
    return Compiles(
        frames=frames,
        recompiles=again,
        clean_recompiles=(again - before[1]) / steps,
        total_ns=ns,
        clean_ns=(ns - before[2]) / steps,
        reasons=tuple(
            Recompiled(at=location(at), reason=reason, times=times)
            for at, reason, times in end.recompiled
        ),
        limit_hit=end.limit,
    )
