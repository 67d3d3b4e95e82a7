"""A format's settings apart from the document, and the console that it prints to."""

from __future__ import annotations

from dataclasses import dataclass
from io import StringIO
from pathlib import Path

from rich.console import Console, RenderableType

from tdiag.report.text import GLUE

#: From this width on two columns are side by side: each is then as wide as a narrow terminal.
WIDE = 110


@dataclass(frozen=True)
class Page:
    """``width``: in characters; ``base_dir``: places below it are shown relative to it. ``latest``:
    whether ``run_dir`` is the run that ``tdiag report`` shows by default. ``all_findings``: show
    every finding, reason and row."""

    width: int = 80
    color: bool = False
    all_findings: bool = False
    base_dir: Path | None = None
    run_dir: Path | None = None
    latest: bool = False

    @property
    def wide(self) -> bool:
        return self.width >= WIDE

    def draw(self, *parts: RenderableType) -> str:
        """The parts one below the other, as text of at most ``width`` characters per line.

        Sets everything that Rich would otherwise take from the process (terminal, size, NO_COLOR,
        Jupyter), so that the same diagnosis always gives the same text.
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
