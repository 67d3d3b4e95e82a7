"""The user's lines around a finding, each with its measurements."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from tdiag.evidence.sampled import StackLine, Stacks
from tdiag.evidence.sources import Excerpt
from tdiag.evidence.store import Evidence
from tdiag.evidence.torch_ops import Ops
from tdiag.model.place import Place
from tdiag.report.document import Document
from tdiag.report.text import inert, relative

# Of the samples: a line with a smaller share is not marked (two runs of one program differ as
# much).
HOT_FRAC = 0.02


@dataclass(frozen=True)
class SourceLine:
    """``here``: the finding's own line. ``samples``: its largest share of the samples (of training
    or of workers); ``calls``: torch calls per step from it; both 0 if none was seen."""

    number: int
    text: str
    here: bool
    samples: float
    calls: float

    @property
    def hot(self) -> bool:
        return self.samples >= HOT_FRAC


@dataclass(frozen=True)
class Source:
    name: str
    lines: tuple[SourceLine, ...]
    changed: bool


def source(place: Place | None, document: Document, base: Path | None) -> Source | None:
    """The lines to show; None if they could not be read."""
    found = _excerpt(place, document.excerpts) if place else None
    if place is None or found is None:
        return None
    evidence = document.evidence or Evidence()
    stacks, ops = evidence.get(Stacks), evidence.get(Ops)
    samples = _shares(place.file, (*stacks.training, *stacks.workers) if stacks else ())
    calls: dict[int, float] = {}
    for line in ops.lines if ops else ():
        if line.at.file == place.file:
            calls[line.at.line] = calls.get(line.at.line, 0.0) + line.calls
    numbered = enumerate(found.lines, found.first)
    lines = tuple(
        SourceLine(
            n, inert(text.expandtabs(4)), n == place.line, samples.get(n, 0.0), calls.get(n, 0.0)
        )
        for n, text in numbered
    )
    return Source(inert(relative(place.file, base)), lines, found.changed)


def _excerpt(place: Place, excerpts: Iterable[Excerpt]) -> Excerpt | None:
    """Of the excerpts that contain the place, the one that begins last, so that enough lines
    follow."""
    mine = [
        e for e in excerpts
        if e.file == place.file and e.first <= place.line < e.first + len(e.lines)
    ]  # fmt: skip
    return min(mine, key=lambda e: abs(place.line - e.first - 5), default=None)


def _shares(file: str, lines: Iterable[StackLine]) -> dict[int, float]:
    shares: dict[int, float] = {}
    for line in lines:
        if line.at.file == file:
            shares[line.at.line] = max(shares.get(line.at.line, 0.0), line.self_frac)
    return shares
