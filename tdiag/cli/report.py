"""`tdiag report`: a run's report again, at any time."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer


def report(
    run: Annotated[
        str | None,
        typer.Argument(
            metavar="[RUN]",
            help="A run directory, its name in .tdiag/runs, or a diagnosis.json; else the latest.",
        ),
    ] = None,
    format: Annotated[
        str,
        typer.Option(
            "--format", "-f", help="terminal, json, line, markdown, sarif, junit or github."
        ),
    ] = "terminal",
    json: Annotated[bool, typer.Option("--json", help="Short for --format json.")] = False,
    all_findings: Annotated[
        bool,
        typer.Option("--all", help="Every finding and every rule that could not be checked."),
    ] = False,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Diagnose the run again with the rules of this tdiag.")
    ] = False,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", metavar="FILE", help="Write to this file instead of stdout."
        ),
    ] = None,
) -> None:
    """Print the report of a run again."""
    from tdiag.cli.conclude import conclude, open_output, terminal_text
    from tdiag.cli.streams import write
    from tdiag.launch.rundir import find
    from tdiag.report import load_diagnosis, render

    if run is not None and Path(run).is_file():
        run_dir, diagnosis = None, load_diagnosis(Path(run))
    else:
        run_dir = find(run)
        kept = (run_dir / "diagnosis.json").is_file() and not fresh
        diagnosis = load_diagnosis(run_dir) if kept else conclude(run_dir)
    name = "json" if json else format
    with open_output(output) as file:
        stream = file or sys.stdout
        if name == "terminal":
            text = terminal_text(diagnosis, run_dir, stream, all_findings=all_findings)
        else:
            text = render(name, diagnosis, run_dir=run_dir, base_dir=Path.cwd())
        if file is not None:
            file.truncate(0)
        write(stream, text)
