"""The step as a stacked bar and a table that add up to the same total."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from tdiag.model.diagnosis import MINOR_FRAC, Component
from tdiag.report.document import Parts
from tdiag.report.page import Page
from tdiag.report.text import clip, inert
from tdiag.report.words import HEAD, QUIET, Words, component
from tdiag.units import apportion, percent, scale_for

_FILLS = "█▓▒░"
_LABEL_CELLS = 22
_NUMBER_CELLS = 32  # colour sample, time and share with their gaps
_MEANING_CELLS = 30


def budget(found: Parts, page: Page) -> Iterable[RenderableType]:
    """The stacked bar, then its table."""
    yield _bar(found.parts, page)
    yield Text()
    yield _table(found.parts, page)


def _fill(index: int, page: Page) -> str:
    """Without colour, neighbouring parts need different patterns."""
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
    """One component's part of the bar, with its name and share inside if they fit."""
    label = next((x for x in (f" {words.label} {share} ", f" {share} ") if len(x) + 2 <= cells), "")
    label = inert(label)
    left = (cells - len(label)) // 2
    right = cells - len(label) - left
    if page.color:
        shown = " " * left + label + " " * right
        return Text(shown, style=f"bold color(231) on {words.color}")
    return Text(fill * left + label + fill * right)


def _table(parts: Sequence[Component], page: Page) -> Table:
    """One row per component, one row for all that are too small, then the step: the sum of all."""
    total = sum(c.ns for c in parts)
    unit, decimals, ns_per_digit = scale_for(total)
    whole = round(total / ns_per_digit)
    times = apportion([c.ns for c in parts], whole)
    tenths = apportion([c.ns for c in parts], 1000)
    table = _grid(page)

    def row(swatch: Text, label: str, which: Sequence[int], meaning: str, style: str = "") -> None:
        time = f"{sum(times[i] for i in which) / 10**decimals:,.{decimals}f} {unit}"
        share = f"{sum(tenths[i] for i in which) / 10:.1f}%"
        shown = clip(inert(label), min(_LABEL_CELLS, page.width - _NUMBER_CELLS))
        cells = [swatch, *(Text(x, style) for x in (shown, time, share))]
        table.add_row(*cells, *([Text(inert(meaning), QUIET)] if _explained(page) else []))

    minor = [i for i, c in enumerate(parts) if _is_minor(c, total) and not page.all_findings]
    minor = minor if len(minor) > 1 else []
    for i, part in enumerate(parts):
        if i not in minor:
            words = component(part.component)
            swatch = "  ■" if page.color else f"  {_fill(i, page) * 2}"
            row(Text(swatch, words.color), words.label, [i], words.meaning)
    if minor:
        names = ", ".join(component(parts[i].component).label for i in minor)
        row(Text(), f"{len(minor)} smaller", minor, names)
    row(Text(), "step", range(len(parts)), "", HEAD)
    return table


def _grid(page: Page) -> Table:
    # The explanations get the remaining width; shrinking all columns equally would cut the numbers.
    grid = Table.grid(padding=(0, 2, 0, 0), expand=_explained(page))
    for column in ("swatch", "label", "time", "share"):
        number = column in ("time", "share")
        grid.add_column(justify="right" if number else "left", no_wrap=True)
    if _explained(page):
        grid.add_column(no_wrap=True, overflow="ellipsis", ratio=1)
    return grid


def _explained(page: Page) -> bool:
    """False where a meaning would be cut to less than half: then the numbers get the width."""
    return page.width >= _NUMBER_CELLS + _LABEL_CELLS + _MEANING_CELLS // 2


def _is_minor(part: Component, total: int) -> bool:
    return part.ns / total < MINOR_FRAC and part.component != "unattributed"
