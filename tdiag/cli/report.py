"""`tdiag report`: prints a run's report again, at any time."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TextIO

import typer

from tdiag.cli.options import HourlyCost

if TYPE_CHECKING:
    from tdiag.evidence.store import Evidence


def report(
    run: Annotated[
        str | None,
        typer.Argument(
            metavar="[RUN]",
            help="A run directory, its name in .tdiag/runs, a URL given to `tdiag run"
            " --run-dir`, a diagnosis.json, or a folder of --scaling. Default: the latest.",
        ),
    ] = None,
    formats: Annotated[
        list[str] | None,
        typer.Option(
            "--format",
            "-f",
            metavar="NAME",
            help="terminal, html, json, line, markdown, sarif, junit or github; several at once,"
            " each with its own -o.",
        ),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Short for --format json.")] = False,
    html: Annotated[
        bool,
        typer.Option(
            "--html",
            help="Short for --format html: a page, in the run directory unless -o is given.",
        ),
    ] = False,
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="Short for --format line: only the verdict.")
    ] = False,
    all_findings: Annotated[
        bool,
        typer.Option(
            "--all",
            help="Show every finding, every rule that could not be checked and every row.",
        ),
    ] = False,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Diagnose the run again with this version's rules.")
    ] = False,
    ops: Annotated[bool, typer.Option("--ops", help="Show the trace's host ops instead.")] = False,
    calls: Annotated[
        bool, typer.Option("--calls", help="Show cProfile's functions instead.")
    ] = False,
    lines: Annotated[
        bool, typer.Option("--lines", help="Show py-spy's hot lines instead, workers separately.")
    ] = False,
    system: Annotated[
        bool,
        typer.Option("--system", help="Show cores, disk, memory and GPU over the run instead."),
    ] = False,
    syscalls: Annotated[
        bool, typer.Option("--syscalls", help="Show strace's system calls instead.")
    ] = False,
    hourly_cost: HourlyCost = None,
    outputs: Annotated[
        list[Path] | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            help="Write to this file instead of stdout: the first for the first format, and so on.",
        ),
    ] = None,
) -> None:
    """Print the report of a run, or the tables of its profilers."""
    from tdiag.cli.conclude import check_cost, conclude, documented, open_output, shown
    from tdiag.cli.html_page import put_page, say_where
    from tdiag.cli.run_scaling import load_scaling, write_scaling_page
    from tdiag.errors import UsageError
    from tdiag.launch.remote import fetched, is_url
    from tdiag.launch.rundir import find
    from tdiag.report import check_format
    from tdiag.report.load import load_diagnosis
    from tdiag.report.of_scaling import document as of_scaling

    flags = (("json", json), ("html", html), ("line", quiet))
    short = [name for name, wanted in flags if wanted]
    names = [*short, *(formats or ())] or ["terminal"]
    for name in names:
        check_format(name)
    check_cost(hourly_cost, "terminal" if "terminal" in names else names[0])
    asked = {"ops": ops, "calls": calls, "lines": lines, "system": system,
             "syscalls": syscalls}  # fmt: skip
    tables = [table for table, wanted in asked.items() if wanted]
    if tables and names != ["terminal"]:
        raise UsageError(
            f"--{tables[0]} works with the terminal format only, not with {names[0]}",
            "leave out one of them",
        )
    if outputs and len(outputs) != len(names):
        raise UsageError(
            f"{len(names)} × --format but {len(outputs)} × -o",
            "give each format its own -o FILE, or leave out -o",
        )
    far = run is not None and is_url(run)
    if far and "html" in names and not outputs:
        raise UsageError(
            f"{run} is not on this machine", "specify where to write the page: -o FILE"
        )
    with ExitStack() as stack:
        places: Sequence[Path | None] = outputs or [None] * len(names)
        files = [stack.enter_context(open_output(path)) for path in places]
        if far:
            run = str(stack.enter_context(fetched(str(run))))
        if tables:
            evidence = _evidence(run)
            _put(files[0], lambda stream: _drawn(tables, evidence, stream, all_findings))
            return
        if run is not None and (scaling := load_scaling(Path(run))) is not None:
            for name, file in zip(names, files, strict=True):
                if name == "html" and file is None:
                    say_where(write_scaling_page(Path(run), scaling))
                else:
                    _put(file, partial(shown, name, of_scaling(scaling), run_dir=Path(run),
                                       all_findings=all_findings))  # fmt: skip
            return
        if run is not None and Path(run).is_file():
            run_dir, diagnosis = None, load_diagnosis(Path(run))
        else:
            run_dir = find(run)
            kept = (run_dir / "diagnosis.json").is_file() and not fresh
            diagnosis = load_diagnosis(run_dir) if kept else conclude(run_dir)
        document = documented(diagnosis, hourly_cost=hourly_cost)
        for name, file in zip(names, files, strict=True):
            if name == "html":
                put_page(diagnosis, run_dir or Path(str(run)).parent, file)
            else:
                _put(file, partial(shown, name, document, run_dir=None if far else run_dir,
                                   all_findings=all_findings))  # fmt: skip


def _put(file: TextIO | None, text: Callable[[TextIO], str]) -> None:
    """Write the text to this file or else to stdout; the text depends on the stream."""
    from tdiag.cli.streams import write

    shown = text(file or sys.stdout)
    if file is not None:
        file.truncate(0)
    write(file or sys.stdout, shown)


def _evidence(run: str | None) -> Evidence:
    """The evidence of the run directory; for a ``diagnosis.json``, of the folder that contains
    it."""
    from tdiag.evidence.from_run import load_run
    from tdiag.launch.rundir import find

    return load_run(find(str(Path(run).parent) if run and Path(run).is_file() else run))


def _drawn(tables: list[str], evidence: Evidence, stream: TextIO, every_row: bool) -> str:
    from tdiag.cli.conclude import shown
    from tdiag.report.document import Document
    from tdiag.report.profilers import sections

    document = Document(name="tdiag", title="", data=None, sections=sections(tables, evidence))
    return shown("terminal", document, stream, all_findings=every_row)
