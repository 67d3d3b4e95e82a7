"""One self-contained page: no request leaves it, and without scripts all but the charts reads.

``parts.html`` and ``core.css`` say what a notebook shows, too; ``page.*`` is the rest.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tdiag.diagnose.details import Details
from tdiag.model.diagnosis import Diagnosis
from tdiag.report.html.parts import Chart
from tdiag.report.page import Page

if TYPE_CHECKING:
    from jinja2 import Environment

HERE = Path(__file__).parent


def render(diagnosis: Diagnosis, page: Page) -> str:
    """The whole page. ``page.details`` is what its charts and tables show; without it the page
    holds what the diagnosis does."""
    from tdiag.report.html.source import source
    from tdiag.report.html.tables import tables

    details = page.details or Details()
    return charted(
        "page.html",
        list(_charts(details)),
        diagnosis=diagnosis,
        details=details,
        page=page,
        tables=list(tables(details, diagnosis, page.base_dir)) if page.details else [],
        source=lambda place: source(place, details, page.base_dir),
    )


def charted(template: str, charts: Sequence[Chart], **told: object) -> str:
    """A page with its charts, what draws them and its styles. ``told``: the template's own."""
    from tdiag.report.html.library import digest, pack, plotly

    library = plotly() if charts else None
    script = _text("inflate.js", "page.js")
    allowed = [digest(script.encode()), *([library.sha256] if library else [])]
    return _templates().get_template(template).render(
        **told,
        charts={chart.id: chart for chart in charts},
        figures=pack(_json({chart.id: chart.figure for chart in charts})),
        library=library,
        script=script,
        styles=_text("core.css", "page.css"),
        policy=_policy(allowed),
    )  # fmt: skip


def fragment(diagnosis: Diagnosis, base_dir: Path | None = None) -> str:
    """The verdict, the budget and the findings for a notebook's cell; no script."""
    return _templates().get_template("fragment.html").render(
        diagnosis=diagnosis,
        page=Page(base_dir=base_dir),
        source=lambda place: None,
        styles=_text("core.css"),
    )  # fmt: skip


def _charts(details: Details) -> Iterator[Chart]:
    from tdiag.report.html.charts import flame, ranks, steps, system, timeline

    for chart in (ranks.chart, steps.chart, timeline.chart, system.chart):
        if found := chart(details):
            yield found
    yield from flame.charts(details)


def _policy(scripts: list[str]) -> str:
    """Only these scripts, by their digest; styles and images of the page itself; no network."""
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
