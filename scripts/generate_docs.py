"""Writes docs/rules/ and the thresholds of docs/verdict.md from the code. A test fails while they
differ."""

from __future__ import annotations

import importlib
import pkgutil
from pathlib import Path

import tdiag.diagnose
import tdiag.evidence
from tdiag.rules.catalogue import all_rules, declared_in, index, listed, page

DOCS = Path(__file__).resolve().parents[1] / "docs"
RULES = DOCS / "rules"
VERDICT = DOCS / "verdict.md"
BEGIN, END = "<!-- thresholds: written by scripts/generate_docs.py -->", "<!-- /thresholds -->"


def pages() -> dict[str, str]:
    """File name → content of every generated page."""
    return {"README.md": index(), **{f"{rule.code}.md": page(rule) for rule in all_rules()}}


def verdict_page() -> str:
    """docs/verdict.md with the thresholds of tdiag/diagnose and of tdiag/evidence between its two
    markers."""
    found = [
        importlib.import_module(module.name)
        for package in (tdiag.diagnose, tdiag.evidence)
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}.")
    ]
    lines = listed(declared_in(tdiag.diagnose, *found))
    before, _, rest = VERDICT.read_text(encoding="utf-8").partition(BEGIN)
    return "\n".join([before + BEGIN, *lines, END + rest.partition(END)[2]])


def main() -> None:
    RULES.mkdir(parents=True, exist_ok=True)
    wanted = pages()
    for stale in RULES.glob("*.md"):
        if stale.name not in wanted:
            stale.unlink()
    for name, content in wanted.items():
        (RULES / name).write_text(content, encoding="utf-8")
    VERDICT.write_text(verdict_page(), encoding="utf-8")


if __name__ == "__main__":
    main()
