"""GitHub workflow commands: findings as annotations at the user's own lines."""

from __future__ import annotations

from tdiag.model.diagnosis import Diagnosis, Finding
from tdiag.report.page import Page
from tdiag.report.summary import headline, why
from tdiag.report.text import inert, relative


def render(diagnosis: Diagnosis, page: Page) -> str:
    """One line a finding, ranked ones as warnings; GitHub shows the first ten of each kind."""
    title = ": ".join(filter(None, headline(diagnosis.verdict)))
    verdict = command("notice", {"title": f"tdiag: {title}"}, diagnosis.verdict.summary)
    return (
        "\n".join([verdict, *(_annotation(f, diagnosis, page) for f in diagnosis.findings)]) + "\n"
    )


def _annotation(finding: Finding, diagnosis: Diagnosis, page: Page) -> str:
    at: dict[str, str] = {}
    if finding.location:
        at["file"] = relative(finding.location.file, page.base_dir)
        if finding.location.line > 0:
            at["line"] = str(finding.location.line)
    at["title"] = f"{finding.code} {finding.name}"
    level = "notice" if finding.advisory else "warning"
    sentences = (finding.summary, f"Fix: {finding.fix.text}", why(finding, diagnosis))
    return command(level, at, "\n".join(s for s in sentences if s))


def command(level: str, properties: dict[str, str], message: str) -> str:
    """Escaped as the runner unescapes it; a name can neither end the command nor add a property."""
    shown = ",".join(
        f"{key}={_escape(inert(value)).replace(':', '%3A').replace(',', '%2C')}"
        for key, value in properties.items()
    )
    text = _escape("\n".join(inert(line, 1200) for line in message.split("\n")))
    return f"::{level} {shown}::{text}"


def _escape(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")
