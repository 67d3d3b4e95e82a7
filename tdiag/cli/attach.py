"""`tdiag attach`: shows where a running training spends its time."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer


def attach(
    pid: Annotated[
        int,
        typer.Argument(
            metavar="PID", min=1, help="The training process, or its launcher or shell."
        ),
    ],
    torchrun: Annotated[
        bool,
        typer.Option("--torchrun", help="Watch all ranks below this process on this machine."),
    ] = False,
    time_budget: Annotated[
        float, typer.Option(min=8, metavar="SECONDS", help="How long to watch.")
    ] = 20.0,
    outside: Annotated[
        bool, typer.Option("--outside", help="Load nothing into the process and ask no probe.")
    ] = False,
    out: Annotated[
        str | None,
        typer.Option(
            metavar="DIR", help="Run directory to write, instead of a new one in .tdiag/runs."
        ),
    ] = None,
    json: Annotated[
        bool, typer.Option("--json", help="Print the diagnosis as JSON on stdout.")
    ] = False,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", metavar="FILE", help="Also write the diagnosis as JSON to this file."
        ),
    ] = None,
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="Print only the verdict, on one line.")
    ] = False,
) -> None:
    """Diagnose a training that already runs, without restarting it.

    tdiag's probe measures one pass of windows and leaves: steps, findings, predicted gains. It is
    in the process if `tdiag run` started it, and is loaded into Python 3.14 and newer. Any other
    training is watched from outside: stacks by py-spy, threads, disk reads, GPUs. Then no steps are
    seen and no gains are predicted.

    tdiag attach 4711

    tdiag attach --torchrun 4700

    Needs permission to trace the process: the same user, or root. Ctrl-C ends the watching and
    reports what was measured so far.
    """
    from tdiag.cli.conclude import conclude, documented, open_output, shown
    from tdiag.cli.html_page import write_page
    from tdiag.cli.streams import say, write
    from tdiag.errors import UsageError
    from tdiag.evidence.from_run import load_run
    from tdiag.launch.attaching import attach as watch
    from tdiag.launch.remote import is_url

    if out and is_url(out):
        raise UsageError("tdiag attach needs a folder on this machine", "specify --out DIR")
    folder = Path(out) if out else None
    with open_output(output) as written:
        run_dir = watch(
            pid,
            time_budget_s=time_budget,
            all_ranks=torchrun,
            outside=outside,
            out=folder,
            quiet=quiet or json,
        )
        evidence = load_run(run_dir)
        diagnosis = conclude(run_dir, evidence)
        document = documented(diagnosis)
        if written is not None:
            written.truncate(0)
            written.write(shown("json", document, written))
        if json:
            write(sys.stdout, shown("json", document, sys.stdout))
        else:
            name = "line" if quiet else "terminal"
            write(sys.stderr, shown(name, document, sys.stderr, run_dir))
        page = write_page(run_dir, diagnosis, evidence)
        if not (json or quiet):
            say(f"tdiag: report page: {os.path.relpath(page)}")
