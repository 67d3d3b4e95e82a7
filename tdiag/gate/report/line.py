"""The outcome on one line, for logs."""

from __future__ import annotations

from tdiag.gate.outcome import Outcome
from tdiag.gate.report.words import summary, title
from tdiag.report.page import Page
from tdiag.report.text import inert


def render(outcome: Outcome, page: Page) -> str:
    """E.g. ``Regressed: the step takes +8.2% [+6.1%, +10.4%] longer …``; the width is not kept."""
    return inert(f"{title(outcome)}: {summary(outcome)}", 1200) + "\n"
