"""docs/try.md lists the changes that there are, in their own words; tdiag itself reads them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tdiag.probe.trial.changes import load, names

PAGE = Path(__file__).parents[2] / "docs" / "try.md"


def test_the_page_lists_every_change() -> None:
    lines = PAGE.read_text().splitlines()
    for change in map(load, names()):
        takes = f"={change.takes}" if change.takes else ""
        third = change.safety if change.kind == "fix" else change.limits
        assert f"| `{change.name}{takes}` | {change.does} | {third} |" in lines


def test_the_changes_are_read_without_torch() -> None:
    """The process of the command line may have none."""
    code = "import sys; sys.modules['torch'] = None; from tdiag.probe.trial.changes import names"
    done = subprocess.run(
        [sys.executable, "-c", f"{code}; names()"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
