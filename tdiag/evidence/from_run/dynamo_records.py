"""What torch.compile did, from dynamo's own counters as the probe read them."""

from __future__ import annotations

from tdiag.evidence.compiling import BrokenAt, Compilation, Compiles, resumed
from tdiag.evidence.from_run.event_files import Process
from tdiag.evidence.from_run.records import CompiledRecord, WindowRecord, location
from tdiag.model.compiled import Recompiled
from tdiag.model.place import Place
from tdiag.probe.wire import BASELINE, is_user_file


def make_compiles(lead: Process) -> Compiles | None:
    """What was compiled; None if dynamo compiled nothing or no clean window ended."""
    windows = [w for w in lead.all(WindowRecord) if w.name == BASELINE]
    end = next((w for w in reversed(windows) if w.state == "end"), None)
    if end is None or end.compiles is None or not end.compiles[0]:
        return None
    frames, again, ns = end.compiles
    begin = next(w for w in windows if w.state == "begin" and w.number == end.number)
    before = begin.compiles or (0, 0, 0)
    steps = max(1, end.step - begin.step)
    said = lead.last(CompiledRecord) or CompiledRecord()
    return Compiles(
        frames=frames,
        recompiles=again,
        clean_recompiles=(again - before[1]) / steps,
        total_ns=ns,
        before_ns=before[2],
        clean_ns=(ns - before[2]) / steps,
        reasons=tuple(
            Recompiled(at=place, reason=reason, times=times)
            for at, reason, times in said.recompiled or []
            for place in (_function(location(at)) if at else None,)
        ),
        limit_hit=bool(said.limit),
        compilations=tuple(_compilation(*row) for row in said.compilations or []),
        breaks=tuple(
            BrokenAt(lines=lines, reason=_in_words(reason), times=times)
            for at, reason, times in said.breaks or []
            if (lines := tuple(x for x in map(location, at) if x and is_user_file(x.file)))
        ),
    )


def _in_words(reason: str) -> str:
    """Dynamo's reason in plain words: it calls a branch on a tensor's value "generic_jump"."""
    return "a branch on a tensor's value" if reason.startswith("generic_jump") else reason


def _compilation(number: str, at: tuple[str, int, str], ops: int, ns: int) -> Compilation:
    file, line, name = at
    function, broken = resumed(name)
    place = Place(file=file, line=line, function=function)
    return Compilation(number=number, at=place, ops=ops, ns=ns, resumed_at=broken)


def _function(at: Place | None) -> Place | None:
    """The user's function, if the name means the rest of it after a graph break."""
    return at and Place(file=at.file, line=at.line, function=resumed(at.function)[0])
