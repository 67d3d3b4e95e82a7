"""`tdiag history`: the training step's time over the commits that were checked."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def history(
    file: Annotated[
        Path, typer.Argument(help="The file that `tdiag check --history FILE` appends to.")
    ] = Path("tdiag-history.jsonl"),
    last: Annotated[
        int,
        typer.Option(min=1, metavar="N", help="Show at most the latest N checks of each script."),
    ] = 100,
    format: Annotated[
        str, typer.Option("--format", "-f", help="terminal, html, json, line or markdown.")
    ] = "terminal",
    json: Annotated[bool, typer.Option("--json", help="Short for --format json.")] = False,
    html: Annotated[bool, typer.Option("--html", help="Short for --format html.")] = False,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", metavar="FILE", help="Write to this file instead of stdout."
        ),
    ] = None,
) -> None:
    """Show the step time of each checked commit, and lasting changes.

    tdiag check train.py --baseline tdiag-baseline.json --history tdiag-history.jsonl

    tdiag history --html -o history.html
    """
    import sys

    from tdiag.cli.conclude import open_output, page_for
    from tdiag.cli.html_page import chosen_format
    from tdiag.cli.streams import say, write
    from tdiag.gate.history_document import document
    from tdiag.gate.history_file import read, series
    from tdiag.report import check_format, render
    from tdiag.units import plural

    chosen = chosen_format(format, json=json, html=html)
    check_format(chosen)
    records, broken = read(file)
    if broken:
        say(f"tdiag: {file}: skipped {plural(broken, 'line')} that are not checks")
    with open_output(output) as opened:
        stream = opened or sys.stdout
        text = render(chosen, document(series(records, last)), page_for(stream))
        if opened is not None:
            opened.truncate(0)
        write(stream, text)
