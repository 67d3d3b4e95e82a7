"""`tdiag rules`: the table of all rules."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tdiag.rules.catalogue import Rule


def rules() -> None:
    """List every rule: its code, class and name, the evidence it needs, what proves its fix."""
    import sys

    from rich.console import Console
    from rich.table import Table

    from tdiag.rules.catalogue import all_rules, needs

    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    for column in ("code", "class", "name", "proven by", "needs"):
        table.add_column(column, no_wrap=column != "needs", overflow="fold")
    for rule in all_rules():
        kinds = needs(rule).values()
        required = ", ".join(kind.__name__ for kind, required in kinds if required)
        table.add_row(rule.code, rule.cls, rule.name, _proven_by(rule), required)
    width = None if sys.stdout.isatty() else 1000  # a line a rule, for grep
    Console(width=width).print(table)


def _proven_by(rule: Rule) -> str:
    """The switch with which `tdiag try` can prove its fix, as its own example names it."""
    from tdiag.rules.catalogue import example

    return (example(rule).fix.intervention or "").partition("=")[0]
