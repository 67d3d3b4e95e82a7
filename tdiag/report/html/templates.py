"""The templates' filters: they turn numbers, prose and names from the run into HTML."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from tdiag import units
from tdiag.model.diagnosis import Component
from tdiag.report import summary, words
from tdiag.report.document import Cell, Column, Parts, Table
from tdiag.report.html.parts import rgb
from tdiag.report.page import Page
from tdiag.report.text import clip_head, clip_middle, inert, kernel_name, spot

_CODE = re.compile(r"`([^`]+)`")
MOST_CHARACTERS = 2_000
ROOM = 160  # the longest name, in characters
MOST_ROWS = 150  # of a table: enough for a reader, and the page stays small


def environment(folder: Path) -> Environment:
    """Everything is escaped, after :func:`_inert` has made it harmless."""
    templates = Environment(
        loader=FileSystemLoader(folder),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_inert,
    )
    templates.filters |= {
        "duration": units.duration,
        "percent": units.percent,
        "count": units.count,
        "prose": prose,
        "paragraphs": paragraphs,
        "lines": lambda text: escape(inert_lines(text)),
        "kind_of": _kind,
        "trusted": Markup,
        "markdown": markdown,
    }
    templates.globals |= {
        "measure_name": summary.measure_name,
        "measure_value": summary.measure_value,
        "plural": units.plural,
        "budget": budget,
        "total": lambda found: sum(part.ns for part in found.parts),
        "cells": cells,
        "place": spot,
        "kind": _kind,
    }
    return templates


def _inert(value: Any) -> Any:
    """Make characters that reorder, hide or control text visible as escapes."""
    if isinstance(value, str) and not isinstance(value, Markup):
        return inert(value, MOST_CHARACTERS)
    return value


def prose(text: str) -> Markup:
    """A rule's sentence as HTML; text between backticks becomes code."""
    shown = inert(" ".join(text.split()), MOST_CHARACTERS)
    if shown.count("`") % 2:
        return escape(shown)
    parts = _CODE.split(shown)
    return Markup("").join(
        Markup("<code>{}</code>").format(part) if i % 2 else escape(part)
        for i, part in enumerate(parts)
    )


def markdown(text: str) -> Markup:
    """A rule's documentation as HTML, without its title; HTML in it stays text, links become
    text."""
    from markdown_it import MarkdownIt

    reader = MarkdownIt("commonmark", {"html": False}).enable("table").disable(["link", "image"])
    body = text.partition("\n")[2]
    return Markup(
        reader.render(inert_lines(body)).replace("<h2>", "<h5>").replace("</h2>", "</h5>")
    )


def inert_lines(text: str) -> str:
    return "\n".join(inert(line, MOST_CHARACTERS) for line in text.splitlines())


def paragraphs(text: str) -> list[Markup]:
    """A fix's alternatives, one per line."""
    return [prose(line) for line in text.splitlines() if line.strip()]


def _kind(block: object) -> str:
    return type(block).__name__


def cells(table: Table, page: Page) -> Iterator[list[tuple[str, float | None]]]:
    """The text and the value of each cell of a row."""
    for row in table.rows[:MOST_ROWS]:
        yield [
            (_cell(cell, column, page), cell.value)
            for cell, column in zip(row, table.columns, strict=True)
        ]


def _cell(cell: Cell, column: Column, page: Page) -> str:
    if cell.place:
        return clip_head(spot(cell.place, page.base_dir), ROOM)
    text = inert(cell.text, 1_000)
    return clip_middle(kernel_name(text, ROOM) if column.kind == "kernel" else text, ROOM)


def budget(found: Parts) -> list[dict[str, Any]]:
    """One row per component; times and shares are rounded so that they add up to the step's."""
    parts = found.parts
    total = sum(c.ns for c in parts)
    unit, decimals, ns_per_digit = units.scale_for(total)
    digits = units.apportion([c.ns for c in parts], round(total / ns_per_digit))
    tenths = units.apportion([c.ns for c in parts], 1000)
    return [
        _row(part, f"{n / 10**decimals:,.{decimals}f} {unit}", share / 10)
        for part, n, share in zip(parts, digits, tenths, strict=True)
    ]


def _row(part: Component, time: str, percent: float) -> dict[str, Any]:
    said = words.component(part.component)
    return {"label": said.label, "meaning": said.meaning, "color": rgb(said.color), "time": time,
            "percent": percent, "ns": part.ns}  # fmt: skip
