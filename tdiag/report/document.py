"""The report document: the result of a diagnosis, a check, a comparison or a history.

It is built once (``of_diagnosis``, ``of_comparison``, ``gate.document``) and rendered by each
format. A text may hold code between backticks. Names from the run are unchanged: each format
escapes them for its reader.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Literal, NamedTuple, TypeAlias

from tdiag.evidence.machine import SystemHistory
from tdiag.evidence.sources import Excerpt
from tdiag.evidence.store import Evidence
from tdiag.model.diagnosis import Component, Measure
from tdiag.model.notes import Note
from tdiag.model.place import Place
from tdiag.model.timeline import Timeline
from tdiag.model.trials import Edit

Tone = Literal["", "good", "bad", "unsure", "quiet", "accent"]
Level = Literal["error", "warning", "note", "skipped", "passed"]


@dataclass(frozen=True)
class Line:
    """A sentence. ``label``: shown before it (``Not sure``). ``minor``: shown only with ``--all``.
    ``place``: the line of code that it is about; ``gain``: what a change there saves."""

    text: str
    label: str = ""
    tone: Tone = ""
    minor: bool = False
    place: Place | None = None
    gain: str = ""

    @property
    def at(self) -> Place | None:
        """``place``, unless the text already names it."""
        place = self.place
        named = place is not None and f"{PurePath(place.file).name}:{place.line}" in self.text
        return None if named else place


@dataclass(frozen=True, kw_only=True)
class Headline:
    """``share``: of the step. ``aside``: how sure. ``sign``: one character for ``tone``. ``level``:
    the verdict's level in a CI log; ``rule``: the rule of this result in formats that list results
    by rule. ``brief``: everything on one line."""

    title: str
    share: str = ""
    aside: str = ""
    tone: Tone = ""
    sign: str = ""
    level: Level = "note"
    lines: tuple[Line, ...] = ()
    brief: str
    rule: AnnotationRule | None = None


class Cell(NamedTuple):
    """``text`` is shown; ``value`` (None for a text) is the sort key. A ``place`` is shown instead
    of the text."""

    text: str
    value: float | None = None
    place: Place | None = None


class Column(NamedTuple):
    """``kind``: a number is never cut; a text is cut at its ``start`` or ``end``, a ``kernel``'s
    name in its middle. ``wide``: shown only on wide pages, because another column has the same
    facts."""

    title: str
    kind: Literal["number", "start", "end", "kernel"] = "number"
    hint: str = ""
    wide: bool = False


@dataclass(frozen=True, kw_only=True)
class Table:
    """``first``: number of rows shown without ``--all``; ``what``: the name of one row. ``note``:
    what the shares refer to. ``absent``: without rows, why there are none and how to get them.
    ``minor``: shown only with ``--all``."""

    title: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    id: str = ""
    aside: str = ""
    note: str = ""
    absent: str = ""
    first: int = 25
    minor: bool = False
    what: str = "row"


@dataclass(frozen=True)
class Parts:
    """The parts of the step: largest first, those that are no named activity last."""

    parts: tuple[Component, ...]


@dataclass(frozen=True, kw_only=True)
class Item:
    """A finding as shown: the change and its ``gain``, then the rule and the place, then the
    evidence. ``number``: its rank, None for an advisory. ``change``: the fix in full sentences, ""
    if ``action`` already says everything. ``code``: lines to paste."""

    number: int | None
    action: str
    gain: str
    rule: str
    name: str
    place: Place | None
    summary: str
    change: str
    code: str
    safety: str
    why: str
    evidence: tuple[Measure, ...] = ()
    explained: str = ""


@dataclass(frozen=True)
class Facts:
    """Aligned lines with labels."""

    rows: tuple[Line, ...]


@dataclass(frozen=True)
class Code:
    """Verbatim lines of code. ``language``: Markdown's name for it."""

    text: str
    language: str


class Point(NamedTuple):
    """One check of a history. Times in ns; ``low`` and ``high``: its confidence interval."""

    label: str
    day: str
    subject: str
    verdict: str
    tone: Tone
    ns: float
    low: float
    high: float
    change: str
    against: str


@dataclass(frozen=True, kw_only=True)
class Trend:
    """Checks over time on one scale, in ns. ``shifts``: index → a lasting change and its size
    (share). ``levels``: medians of the stretches between shifts."""

    id: str
    title: str
    summary: str
    points: tuple[Point, ...]
    low: float
    high: float
    shifts: Mapping[int, tuple[str, float]]
    levels: tuple[float, ...]


Block: TypeAlias = Line | Facts | Table | Parts | Item | Code | Trend | Timeline | SystemHistory


@dataclass(frozen=True, kw_only=True)
class Section:
    """``first``: number of items shown without ``--all``; ``what``: their name (one, many).
    ``folded``: opened on request. ``page_only``: too long for a terminal or a comment. ``beside``:
    its tables are narrow enough to be shown side by side on a wide page."""

    id: str
    title: str
    blocks: tuple[Block, ...]
    aside: str = ""
    first: int | None = None
    what: tuple[str, str] = ("item", "items")
    folded: bool = False
    page_only: bool = False
    beside: bool = False


@dataclass(frozen=True, kw_only=True)
class AnnotationRule:
    """The rule that an annotation belongs to. ``explained``: its documentation in Markdown."""

    id: str
    name: str
    text: str
    tags: tuple[str, ...] = ()
    explained: str = ""


@dataclass(frozen=True, kw_only=True)
class Annotation:
    """A message for programs, at one of the user's lines. ``level``: ``skipped`` was not checked,
    ``passed`` is only counted. ``title``: one line; ``lines``: more. ``places``: each with its own
    text. ``share``: the share of the step that the fix saves. ``edits``: a patch for it."""

    rule: AnnotationRule
    level: Level
    title: str
    lines: tuple[str, ...] = ()
    places: tuple[tuple[Place, str], ...] = ()
    group: str = ""
    name: str = ""
    share: float | None = None
    edits: tuple[Edit, ...] = ()
    properties: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Document:
    """``name``: the tool and its command. ``title``: the subject; ``about``: where it ran.
    ``data``: what the json format dumps. ``evidence`` and ``excerpts``: data for a page's charts
    and source lines."""

    name: str
    title: str
    data: object
    headline: Headline | None = None
    about: tuple[str, ...] = ()
    sections: tuple[Section, ...] = ()
    annotations: tuple[Annotation, ...] = ()
    notes: tuple[Note, ...] = ()
    version: str = ""
    evidence: Evidence | None = None
    excerpts: tuple[Excerpt, ...] = ()
