"""`tdiag rules`: the table of all rules."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rich.console import Console

    from tdiag.rules.catalogue import Rule

HEADER = ("code", "class", "name", "proven by", "needs")
WIDE = 120  # characters for all columns; in a narrower terminal "needs" goes on its own line


def rules(
    json: Annotated[
        bool, typer.Option("--json", help="Print the table as JSON on stdout.")
    ] = False,
) -> None:
    """List every rule: code, class, name, evidence it needs."""
    import sys
    from json import dumps

    from rich.console import Console

    from tdiag.rules.catalogue import all_rules

    console = Console(width=None if sys.stdout.isatty() else 1000)  # piped: one line per rule
    rows = [_row(rule) for rule in all_rules()]
    if json:
        keys = [name.replace(" ", "_") for name in HEADER]
        table = [dict(zip(keys, row, strict=True)) for row in rows]
        sys.stdout.write(f"{dumps(table, indent=2)}\n")
        return
    widths = [max(len(row[i]) for row in (HEADER, *rows)) for i in range(len(HEADER) - 1)]
    _line(console, HEADER, widths, "bold")
    for row in rows:
        _line(console, row, widths, "")


def _line(console: Console, row: tuple[str, ...], widths: list[int], style: str) -> None:
    from rich.padding import Padding
    from rich.text import Text

    *first, needs = row
    line = "  ".join(cell.ljust(width) for cell, width in zip(first, widths, strict=True))
    if console.width >= WIDE:
        console.print(Text(f"{line}  {needs}".rstrip(), style), soft_wrap=True)
        return
    console.print(Text(line.rstrip(), style), soft_wrap=True)
    if needs:
        console.print(Padding(Text(needs, style or "dim"), (0, 0, 0, widths[0] + 2)))


def _row(rule: Rule) -> tuple[str, ...]:
    """One table row. ``proven by``: the change of `tdiag try` that the fix of its example names."""
    from tdiag.rules.catalogue import example, needs

    required = ", ".join(kind.__name__ for kind, must in needs(rule).values() if must)
    proof = (example(rule).fix.intervention or "").partition("=")[0]
    return rule.code, rule.cls, rule.name, proof, required
