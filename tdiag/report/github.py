"""GitHub workflow commands: the verdict, and annotations at the user's own lines."""

from __future__ import annotations

from collections.abc import Iterator

from tdiag.report.document import Annotation, Document
from tdiag.report.page import Page
from tdiag.report.text import inert, relative

LEVELS = {"error": "error", "warning": "warning", "note": "notice"}


def render(document: Document, page: Page) -> str:
    """One line per place; GitHub shows the first ten of each level."""
    lines = []
    if head := document.headline:
        title = ": ".join(filter(None, (document.name, head.title, head.share)))
        said = "\n".join(f"{x.label}: {x.text}" if x.label else x.text for x in head.lines)
        lines.append(command(LEVELS[head.level], {"title": title}, said))
    for annotation in document.annotations:
        if annotation.level in LEVELS:
            lines += _commands(annotation, page)
    return "\n".join(lines) + "\n"


def _commands(annotation: Annotation, page: Page) -> Iterator[str]:
    level = LEVELS[annotation.level]
    title = annotation.title
    if not title.startswith(annotation.name):
        title = f"{annotation.name}: {title}"
    for place, said in annotation.places or ((None, ""),):
        at = {"file": relative(place.file, page.base_dir)} if place else {}
        if place and place.line > 0:
            at["line"] = str(place.line)
        lines = [said, *annotation.lines] if said else annotation.lines
        yield command(level, {**at, "title": title}, "\n".join(lines))


def command(level: str, properties: dict[str, str], message: str) -> str:
    """A workflow command, escaped so that a name can neither end it nor add a property."""
    shown = ",".join(
        f"{key}={_escape(inert(value)).replace(':', '%3A').replace(',', '%2C')}"
        for key, value in properties.items()
    )
    text = _escape("\n".join(inert(line, 1200) for line in message.split("\n")))
    return f"::{level} {shown}::{text}"


def _escape(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")
