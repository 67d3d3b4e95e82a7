"""Text and colour as HTML and Plotly want them; whatever others named is inert first."""

from __future__ import annotations

import html
import re

from tdiag.report.text import inert

_PALETTE = re.compile(r"color\((\d+)\)")
_CUBE = (0, 95, 135, 175, 215, 255)


def label(text: object, limit: int = 160) -> str:
    """For a chart: Plotly reads a subset of HTML in its texts, so that it must be escaped."""
    return html.escape(inert(text, limit), quote=False)


def rgb(color: str) -> str:
    """``color(166)`` of the 256-colour palette (xterm's) as ``#d75f00``."""
    found = _PALETTE.search(color)
    number = int(found[1]) if found else 244
    if number >= 232:
        parts = (8 + 10 * (number - 232),) * 3
    else:
        red, rest = divmod(number - 16, 36)
        parts = (_CUBE[red], _CUBE[rest // 6], _CUBE[rest % 6])
    return "#" + "".join(f"{part:02x}" for part in parts)
