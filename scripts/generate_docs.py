"""Writes docs/rules/ from the rule files' own docstrings. A test fails while they differ."""

from __future__ import annotations

from pathlib import Path

from tdiag.rules.catalogue import all_rules, index, page

RULES = Path(__file__).resolve().parents[1] / "docs" / "rules"


def pages() -> dict[str, str]:
    """File name → content of every generated page."""
    return {"README.md": index(), **{f"{rule.code}.md": page(rule) for rule in all_rules()}}


def main() -> None:
    RULES.mkdir(parents=True, exist_ok=True)
    wanted = pages()
    for stale in RULES.glob("*.md"):
        if stale.name not in wanted:
            stale.unlink()
    for name, content in wanted.items():
        (RULES / name).write_text(content, encoding="utf-8")


if __name__ == "__main__":
    main()
