"""The machine's best rates, from ``roof.json`` (docs/run-directory.md)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from tdiag.evidence.roofline import Roof
from tdiag.evidence.store import Evidence
from tdiag.probe.wire import ROOF

MEASURED = "measured on this machine after the run"
COPY = "copy "
CALLS = "calls"


class _Rate(msgspec.Struct):
    what: str
    threads: int
    per_s: float


class _RoofFile(msgspec.Struct):
    allowed: int = 0
    used: int = 0
    queued: float = 0.0
    rates: list[_Rate] = []
    why: str = ""


def add_roof(evidence: Evidence, run_dir: Path) -> None:
    """Add the Roof, or why there is none; a device's roof comes from its trace."""
    if evidence.get(Roof) is not None:
        return
    try:
        found = msgspec.json.decode((run_dir / ROOF).read_bytes(), type=_RoofFile)
    except (OSError, msgspec.DecodeError):
        evidence.missing[Roof] = "this machine's best rates were not measured"
        return
    if not found.rates:
        evidence.missing[Roof] = found.why or "this machine's best rates were not measured"
        return
    certainty = max(0.0, 1.0 - found.queued)
    fewer = [rate for rate in found.rates if rate.threads == found.used < found.allowed]
    in_force = _roof(fewer, found.used, certainty) if fewer else None
    evidence.add(_roof(found.rates, found.allowed, certainty, in_force))


def _roof(
    rates: Sequence[_Rate], threads: int, certainty: float, in_force: Roof | None = None
) -> Roof:
    """The best of all these rates, whatever the number of threads: more threads may be slower."""
    best: dict[str, float] = {}
    for rate in rates:
        best[rate.what] = max(best.get(rate.what, 0.0), rate.per_s)
    calls = best.pop(CALLS, 0.0)
    copies = {int(w.removeprefix(COPY)): best.pop(w) for w in list(best) if w.startswith(COPY)}
    return Roof(
        flops_per_s=best,
        bytes_per_s=tuple(sorted(copies.items())),
        source=MEASURED,
        op_ns=1e9 / calls if calls else None,
        threads=threads,
        in_force=in_force,
        certainty=certainty,
    )
