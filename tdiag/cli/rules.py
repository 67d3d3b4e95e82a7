"""`tdiag rules`: the table of all rules."""

from __future__ import annotations


def rules() -> None:
    """List every rule: its code, class and name, and the evidence it needs."""
    import sys

    from rich.console import Console
    from rich.table import Table

    from tdiag.diagnose.engine import all_rules, needs

    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    for column in ("code", "class", "name", "needs"):
        table.add_column(column, no_wrap=column != "needs", overflow="fold")
    for rule in all_rules():
        kinds = needs(rule).values()
        required = ", ".join(kind.__name__ for kind, required in kinds if required)
        table.add_row(rule.code, rule.cls, rule.name, required)
    width = None if sys.stdout.isatty() else 120
    Console(width=width).print(table)
