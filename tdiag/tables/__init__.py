"""The tools' own tables, one file each: ``parts(evidence, page)`` gives what is drawn below each
other. Adding one is its file, its line in ``TABLES`` and its option of ``tdiag report``."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from rich.console import RenderableType
from rich.text import Text

from tdiag.evidence.store import Evidence
from tdiag.report.page import Page
from tdiag.tables import calls, lines, ops, syscalls, system

__all__ = ["TABLES", "draw"]

TABLES: dict[str, Callable[[Evidence, Page], Iterable[RenderableType]]] = {
    "ops": ops.parts,
    "calls": calls.parts,
    "lines": lines.parts,
    "system": system.parts,
    "syscalls": syscalls.parts,
}


def draw(names: Iterable[str], evidence: Evidence, page: Page) -> str:
    """These tables of one run, below each other; one without evidence is a sentence why."""
    return page.draw(*(part for name in names for part in TABLES[name](evidence, page)), Text())
