"""What a format is told besides the diagnosis, and the console that draws on it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from io import StringIO
from pathlib import Path

from rich.console import Console, RenderableType
from rich.padding import Padding
from rich.text import Text

from tdiag.diagnose.details import Details
from tdiag.report.text import GLUE
from tdiag.report.words import HEAD, QUIET

#: From here on two columns stand side by side: each then has what a narrow terminal gives one.
WIDE = 110


@dataclass(frozen=True)
class Page:
    """``width`` in cells; ``base_dir``: locations below it are shown relative to it.
    ``latest``: whether ``run_dir`` is the run that ``tdiag report`` shows unless told another.
    ``hourly_cost``: what the machine costs, in any currency; None = not asked for.
    ``explained``: a rule's documentation (Markdown) by its code. ``details``: what only a page
    has room for."""

    width: int = 80
    color: bool = False
    all_findings: bool = False
    base_dir: Path | None = None
    run_dir: Path | None = None
    latest: bool = False
    hourly_cost: float | None = None
    explained: Mapping[str, str] = field(default_factory=dict)
    details: Details | None = None

    @property
    def wide(self) -> bool:
        return self.width >= WIDE

    def draw(self, *parts: RenderableType) -> str:
        """The parts below each other, as text of at most ``width`` cells a line.

        Every setting that Rich would take from the process (terminal, size, NO_COLOR, Jupyter)
        is given, so that the same diagnosis always gives the same text.
        """
        out = StringIO()
        console = Console(
            file=out,
            width=self.width,
            height=1000,
            color_system="256" if self.color else None,
            force_terminal=self.color,
            no_color=not self.color,
            force_jupyter=False,
            legacy_windows=False,
            markup=False,
            emoji=False,
            highlight=False,
        )
        for part in parts:
            console.print(part)
        lines = out.getvalue().replace(GLUE, " ").splitlines()
        return "\n".join(line.rstrip() for line in lines) + "\n"


def heading(title: str, right: str, page: Page) -> Iterator[RenderableType]:
    """An empty line, then a ruled one with ``title`` and ``right``; this one below if too long."""
    room = page.width - len(title) - 3
    beside = right and len(right) < room - 2
    line = "─" * max(2, room - len(right) - 1 if beside else room)
    yield Text()
    yield Text.assemble(" ", (title, HEAD), " ", (line, QUIET), f" {right}" if beside else "")
    if right and not beside:
        yield Padding(right, (0, 1, 0, 2))
