"""docs/try.md lists the changes that there are, in their own words."""

from __future__ import annotations

from pathlib import Path

from tdiag.probe.trial.changes import load, names

PAGE = Path(__file__).parents[2] / "docs" / "try.md"


def test_the_page_lists_every_change() -> None:
    lines = PAGE.read_text().splitlines()
    for change in map(load, names()):
        takes = f"={change.takes}" if change.takes else ""
        third = change.safety if change.kind == "fix" else change.limits
        assert f"| `{change.name}{takes}` | {change.does} | {third} |" in lines
