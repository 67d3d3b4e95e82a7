"""`tdiag doctor`: what this machine allows, what is missing, and what the diagnosis lacks then."""

from __future__ import annotations

from typing import Annotated

import typer

NOTHING_WORKS = 1


def doctor(
    python: Annotated[
        str | None, typer.Option(metavar="PATH", help="Interpreter of the training scripts.")
    ] = None,
    json: Annotated[
        bool, typer.Option("--json", help="Print each check as JSON on stdout.")
    ] = False,
) -> None:
    """Show what tdiag can measure on this machine.

    Really attaches py-spy, to its own test process. Exits 1 only if nothing can work: there is no
    torch, or no place to write.
    """
    import sys
    from dataclasses import asdict
    from json import dumps

    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from tdiag.launch.permissions import checks

    signs = {True: ("yes", "green"), False: ("no", "red"), None: ("", "")}
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    found = list(checks(python))
    if json:
        sys.stdout.write(f"{dumps([asdict(check) for check in found], indent=2)}\n")
    for check in () if json else found:
        shown = Text(check.found)
        for more in (check.cost, check.allow if not check.ok else ""):
            if more:
                shown.append(f"\n{more}", style="dim")
        table.add_row(check.name, Text(*signs[check.ok]), shown)
    if not json:
        Console(highlight=False).print(table)
    if any(check.vital and not check.ok for check in found):
        raise typer.Exit(NOTHING_WORKS)
