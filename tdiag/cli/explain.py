"""`tdiag explain`: everything about one rule, from its own file."""

from __future__ import annotations

import sys
from typing import Annotated

import typer


def explain(
    rule: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[CODE|NAME|WORD...]",
            help="TD201, 201, or a rule's name; any other words search the rules.",
        ),
    ] = None,
) -> None:
    """Explain a rule: what it measures, when it fires, what to do."""
    from rich.console import Console
    from rich.markdown import Markdown

    from tdiag.rules.catalogue import explain as page
    from tdiag.rules.catalogue import index

    text = page(" ".join(rule)) if rule else index()
    if sys.stdout.isatty():
        Console().print(Markdown(text))
    else:
        sys.stdout.write(text)
