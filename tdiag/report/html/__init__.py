"""One self-contained page without network requests; without JavaScript only the charts are missing.

``parts.html`` and ``core.css`` hold what a notebook shows too; ``page.*`` is the rest. Only the
page draws charts, from the document's evidence: a terminal and a comment have no room for them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tdiag.model.diagnosis import Diagnosis
from tdiag.report.document import Document, Trend
from tdiag.report.html.parts import Chart
from tdiag.report.page import Page

if TYPE_CHECKING:
    from jinja2 import Environment

HERE = Path(__file__).parent
# Sections that the page shows elsewhere, or that a chart or a longer table replaces.
_PLACED = ("budget", "findings", "advisories", "along-time")
_DRAWN = ("top", "ranks-table")
_FIRST = ("watched", "beside", "watched-ranks")  # instead of a step's budget, before the charts


def render(document: Document, page: Page) -> str:
    """The whole page. Without ``document.evidence`` it has no charts except those of a history."""
    from tdiag.report.html.library import digest, pack, plotly
    from tdiag.report.html.source import source

    drawn = list(_charts(document))
    charts = {chart.id: chart for chart in (*drawn, *_trends(document))}
    library = plotly() if charts else None
    script = _text("inflate.js", "page.js")
    allowed = [digest(script.encode()), *([library.sha256] if library else [])]
    elsewhere = (*_PLACED, *_FIRST, *(_DRAWN if document.evidence else ()))
    text = _templates().get_template("page.html").render(
        doc=document,
        page=page,
        ids={section.id: section for section in document.sections},
        first=[section for section in document.sections if section.id in _FIRST],
        rest=[section for section in document.sections if section.id not in elsewhere],
        drawn=drawn,
        charts=charts,
        source=lambda place: source(place, document, page.base_dir),
        figures=pack(_json({chart.id: chart.figure for chart in charts.values()})),
        library=library,
        script=script,
        styles=_text("core.css", "page.css"),
        policy=_policy(allowed),
    )  # fmt: skip
    return text.rstrip() + "\n"


def fragment(document: Document, base_dir: Path | None = None) -> str:
    """The verdict, the budget and the findings for a notebook's cell; no script."""
    return _templates().get_template("fragment.html").render(
        doc=document,
        page=Page(base_dir=base_dir),
        source=lambda place: None,
        styles=_text("core.css"),
    )  # fmt: skip


def _charts(document: Document) -> Iterator[Chart]:
    from tdiag.report.html.charts import (
        flame,
        machine_strips,
        rank_steps,
        step_timeline,
        step_times,
    )

    if document.evidence is None:
        return
    if isinstance(document.data, Diagnosis) and document.data.ranks:
        yield rank_steps.chart(document.data.ranks)
    for chart in (step_times.chart, step_timeline.chart, machine_strips.chart):
        if found := chart(document.evidence):
            yield found
    yield from flame.charts(document.evidence)


def _trends(document: Document) -> Iterator[Chart]:
    from tdiag.report.html.charts import trend

    for section in document.sections:
        yield from (trend.chart(block) for block in section.blocks if isinstance(block, Trend))


def _policy(scripts: list[str]) -> str:
    """A content security policy: only these scripts (by digest), the page's own styles and
    images."""
    return (
        "default-src 'none'; script-src "
        + " ".join(f"'{script}'" for script in scripts)
        + "; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'"
    )


def _json(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":"), allow_nan=False).encode()


def _text(*names: str) -> str:
    return "\n".join((HERE / name).read_text(encoding="utf-8") for name in names)


@cache
def _templates() -> Environment:
    from tdiag.report.html.templates import environment

    return environment(HERE)
