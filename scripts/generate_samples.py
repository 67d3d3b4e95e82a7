"""Writes the reports that README.md and docs/report.md show, from the product's own samples.

A block stands between ``<!-- sample: NAME PART -->`` and ``<!-- end of sample -->``. The samples
are diagnoses of rules' own examples (tests/report/product.py). A test fails while a block differs.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tdiag.report import render  # noqa: E402
from tdiag.report.of_diagnosis import document  # noqa: E402
from tdiag.report.page import Page  # noqa: E402
from tests.report.product import HOME, PRODUCT  # noqa: E402

PAGES = ("README.md", "docs/report.md")
_BLOCK = re.compile(
    r"(<!-- sample: (\w+) ([\w ]+) -->\n```text\n).*?(```\n<!-- end of sample -->)", re.DOTALL
)
_PARTS = {"budget": "Step time", "findings": "What to change"}


def pages() -> dict[str, str]:
    """Path from the root → its text with every block as the product says it today."""
    return {name: _BLOCK.sub(_block, (ROOT / name).read_text("utf-8")) for name in PAGES}


def _block(found: re.Match[str]) -> str:
    return f"{found[1]}{part(found[2], *found[3].split())}{found[4]}"


def part(name: str, *wanted: str) -> str:
    """Of a sample, in 80 cells: ``verdict``, ``budget``, ``bar`` (the budget's first line),
    ``first`` (finding) or ``brief`` (its first lines)."""
    text = render("terminal", document(PRODUCT[name]), Page(width=80, base_dir=HOME))
    blocks = re.split(r"\n(?= [A-Z][\w ]+ ─)", text.strip("\n"))
    shown = []
    for one in wanted:
        if one == "verdict":
            shown.append(blocks[0].rstrip())
            continue
        title = _PARTS[{"bar": "budget", "first": "findings", "brief": "findings"}.get(one, one)]
        lines = next(b for b in blocks if title in b.splitlines()[0]).splitlines()
        if one == "bar":
            lines = lines[1:2]
        if one == "brief":
            lines = lines[1:4]
        if one == "first":
            end = next((i for i, x in enumerate(lines) if x.startswith(" 2 ")), len(lines))
            lines = lines[1:end]
        shown.append("\n".join(lines).rstrip())
    return "\n".join(shown) + "\n"


def main() -> None:
    for name, text in pages().items():
        (ROOT / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
