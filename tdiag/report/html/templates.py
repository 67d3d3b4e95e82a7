"""The templates' words: how numbers, prose and names of others become HTML."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from tdiag import units
from tdiag.model.diagnosis import Component, Diagnosis
from tdiag.report import summary, words
from tdiag.report.html.text import rgb
from tdiag.report.text import inert, spot

LAST = ("other", "unattributed")  # what is not a named activity closes the budget
_CODE = re.compile(r"`([^`]+)`")
MOST_CHARACTERS = 2_000


def environment(folder: Path) -> Environment:
    """Everything is escaped, and inert before that: see :func:`_inert`."""
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
        "disturbance": units.disturbance,
        "prose": prose,
        "paragraphs": paragraphs,
        "basename": lambda path: Path(path).name,
        "trusted": Markup,
        "markdown": markdown,
    }
    templates.globals |= {
        "headline": summary.headline,
        "best": summary.best,
        "ranked": summary.ranked,
        "advisories": summary.advisories,
        "doubtful": summary.doubtful,
        "doubts": summary.doubts,
        "unchecked": summary.unchecked,
        "failed": summary.failed,
        "what_to_do": summary.what_to_do,
        "measure_name": summary.measure_name,
        "measure_value": summary.measure_value,
        "why": summary.why,
        "together": summary.together,
        "faster": units.faster,
        "plural": units.plural,
        "safety": words.SAFETY,
        "budget": budget,
        "tone": tone,
        "place": spot,
        "environment_rows": environment_rows,
        "no_share": summary.NO_SHARE,
    }
    return templates


def _inert(value: Any) -> Any:
    """What reorders, hides or controls text becomes a visible escape."""
    if isinstance(value, str) and not isinstance(value, Markup):
        return inert(value, MOST_CHARACTERS)
    return value


def prose(text: str) -> Markup:
    """A rule's sentence: what it put between backticks is code."""
    shown = inert(" ".join(text.split()), MOST_CHARACTERS)
    if shown.count("`") % 2:
        return escape(shown)
    parts = _CODE.split(shown)
    return Markup("").join(
        Markup("<code>{}</code>").format(part) if i % 2 else escape(part)
        for i, part in enumerate(parts)
    )


def markdown(text: str) -> Markup:
    """A rule's documentation, without its title; markup in it stays text, links say their text."""
    from markdown_it import MarkdownIt

    reader = MarkdownIt("commonmark", {"html": False}).enable("table").disable(["link", "image"])
    body = text.partition("\n")[2]
    return Markup(
        reader.render(inert_lines(body)).replace("<h2>", "<h5>").replace("</h2>", "</h5>")
    )


def inert_lines(text: str) -> str:
    return "\n".join(inert(line, MOST_CHARACTERS) for line in text.splitlines())


def paragraphs(text: str) -> list[Markup]:
    """A fix's alternatives, one a line."""
    return [prose(line) for line in text.splitlines() if line.strip()]


def tone(diagnosis: Diagnosis) -> str:
    """How the verdict is coloured: good, bad, or unsure."""
    verdict = diagnosis.verdict
    if verdict.healthy:
        return "good"
    if verdict.cls in summary.NO_SHARE or summary.doubtful(verdict):
        return "unsure"
    return "bad"


def budget(diagnosis: Diagnosis) -> list[dict[str, Any]]:
    """A row a component, times and shares so rounded that they add up to the step's."""
    parts = sorted(
        (c for c in diagnosis.budget if c.ns > 0), key=lambda c: (c.component in LAST, -c.ns)
    )
    total = sum(c.ns for c in parts)
    if not total:
        return []
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


def environment_rows(found: dict[str, Any]) -> list[tuple[str, str]]:
    """What ran where; what is not known is left out."""
    rows = []
    for name, value in found.items():
        if value in (None, "", [], ()):
            continue
        if isinstance(value, list | tuple):
            value = shlex.join(map(str, value))
        rows.append((name.replace("_", " "), str(value)))
    return rows
