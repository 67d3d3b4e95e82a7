"""The step as a stacked bar and a table that add up to the same total."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from tdiag.diagnose.model import Component, Diagnosis
from tdiag.report.page import Page
from tdiag.report.text import clip, inert
from tdiag.report.units import apportion, percent, scale_for
from tdiag.report.words import HEAD, QUIET, Words, component

#: Smaller shares of the step get one common line, so that the table shows what matters.
MINOR_FRAC = 0.005
LAST = ("other", "unattributed")  # what is not a named activity closes the table
_FILLS = "█▓▒░"
_LABEL_CELLS = 22


def budget(diagnosis: Diagnosis, page: Page) -> RenderableType | None:
    """The stacked bar above its table, or None where nothing was measured."""
    parts = sorted(
        (c for c in diagnosis.budget if c.ns > 0),
        key=lambda c: (c.component in LAST, -c.ns),
    )
    if not parts:
        return None
    return Group(_bar(parts, page), Text(), _table(parts, page))


def _fill(index: int, page: Page) -> str:
    """Without colour neighbours must differ by their pattern."""
    return "█" if page.color else _FILLS[index % len(_FILLS)]


def _bar(parts: Sequence[Component], page: Page) -> Text:
    bar = Text("  ", no_wrap=True)
    total = sum(c.ns for c in parts)
    cells = apportion([c.ns for c in parts], page.width - 3)  # two cells of margin, one after
    for i, (part, n) in enumerate(zip(parts, cells, strict=True)):
        words = component(part.component)
        bar.append_text(_segment(_fill(i, page), n, words, percent(part.ns / total), page))
    return bar


def _segment(fill: str, cells: int, words: Words, share: str, page: Page) -> Text:
    """One component's piece, with its name and share inside as far as they fit."""
    label = next((x for x in (f" {words.label} {share} ", f" {share} ") if len(x) + 2 <= cells), "")
    label = inert(label)
    left = (cells - len(label)) // 2
    right = cells - len(label) - left
    if page.color:
        shown = " " * left + label + " " * right
        return Text(shown, style=f"bold color(231) on {words.color}")
    return Text(fill * left + label + fill * right)


def _table(parts: Sequence[Component], page: Page) -> Table:
    total = sum(c.ns for c in parts)
    unit, decimals, ns_per_digit = scale_for(total)
    whole = round(total / ns_per_digit)
    digits = apportion([c.ns for c in parts], whole)
    tenths = apportion([c.ns for c in parts], 1000)
    table = Table.grid(padding=(0, 2, 0, 0))
    for _ in range(2):
        table.add_column(no_wrap=True)
    for _ in range(2):
        table.add_column(justify="right", no_wrap=True)
    table.add_column(no_wrap=True, overflow="ellipsis")

    def time(n: int) -> str:
        return f"{n / 10**decimals:,.{decimals}f} {unit}"

    minor = [i for i, c in enumerate(parts) if _is_minor(c, total) and not page.all_findings]
    minor = minor if len(minor) > 1 else []
    for i, part in enumerate(parts):
        if i in minor:
            continue
        words = component(part.component)
        table.add_row(
            Text("  ■" if page.color else f"  {_fill(i, page) * 2}", words.color),
            clip(inert(words.label), _LABEL_CELLS),
            time(digits[i]),
            f"{tenths[i] / 10:.1f}%",
            Text(inert(words.meaning), QUIET),
        )
    if minor:
        names = ", ".join(inert(component(parts[i].component).label) for i in minor)
        table.add_row(
            "",
            f"{len(minor)} smaller",
            time(sum(digits[i] for i in minor)),
            f"{sum(tenths[i] for i in minor) / 10:.1f}%",
            Text(names, QUIET),
        )
    table.add_row("", Text("step", HEAD), Text(time(whole), HEAD), Text("100.0%", HEAD), "")
    return table


def _is_minor(part: Component, total: int) -> bool:
    return part.ns / total < MINOR_FRAC and part.component != "unattributed"
