"""`tdiag analyze`: the report of traces that torch.profiler recorded, here or elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from tdiag.diagnose.model import Diagnosis
    from tdiag.evidence.device import Ranks
    from tdiag.evidence.from_trace.files import TracedFile
    from tdiag.trace.inflate import Progress

SHOWN_BYTES = 20 << 20  # smaller files are read before a progress bar could be seen


def analyze(
    paths: Annotated[
        list[Path],
        typer.Argument(
            metavar="PATH...",
            help="Traces (.json, .json.gz), a TensorBoard log folder, or a folder of ranks.",
        ),
    ],
    against: Annotated[
        Path | None,
        typer.Option("--against", metavar="PATH", help="Say what changed since this trace."),
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
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", metavar="FILE", help="Write to this file instead of stdout."
        ),
    ] = None,
) -> None:
    """Say where the device's time goes in traces recorded by torch.profiler.

    Several traces of one job (its ranks) give one report: that of the rank the others wait for.
    """
    from tdiag.cli.conclude import open_output, terminal_text
    from tdiag.cli.streams import write
    from tdiag.report import render

    with open_output(output) as file:
        diagnosis, ranks = _diagnosis(paths)
        stream = file or sys.stdout
        name = "json" if json else format
        if name == "terminal":
            text = terminal_text(diagnosis, None, stream, all_findings=all_findings)
            text += _ranks_table(ranks) if ranks else ""
            text += _changes(_diagnosis([against])[0], diagnosis) if against else ""
        else:
            text = render(name, diagnosis, base_dir=Path.cwd())
        if file is not None:
            file.truncate(0)
        write(stream, text)


def _diagnosis(paths: list[Path]) -> tuple[Diagnosis, Ranks | None]:
    from tdiag.diagnose import diagnose
    from tdiag.errors import RunError, UsageError
    from tdiag.evidence.device import Ranks
    from tdiag.evidence.from_trace.files import find_traces, read_files
    from tdiag.evidence.from_trace.ranks import merge_ranks

    files = find_traces(paths)
    with _progress(files) as progress:
        results = read_files(files, progress)
    errors = [found for found in results if isinstance(found, RunError)]
    read = [found for found in results if not isinstance(found, RunError)]
    if not read:
        raise errors[0]
    by_rank = {_rank(found, index): found.evidence for index, found in enumerate(read)}
    if len(by_rank) < len(read):
        raise UsageError(
            "these traces are not the ranks of one job: some have the same rank",
            "analyze them one by one, or two of them with --against",
        )
    evidence = merge_ranks(by_rank)
    evidence.notes += [error.message for error in errors]
    return diagnose(evidence), evidence.get(Ranks)


def _rank(found: TracedFile, index: int) -> int:
    return index if found.rank is None else found.rank


@contextmanager
def _progress(files: list[Path]) -> Iterator[Progress | None]:
    """A bar of bytes read on stderr, for one large file in a terminal."""
    small = len(files) > 1 or not files[0].is_file() or files[0].stat().st_size < SHOWN_BYTES
    if small or not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn

    columns = (TextColumn("reading {task.description}"), BarColumn(), DownloadColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(files[0].name, total=None)
        yield lambda done, size: bar.update(task, completed=done, total=size)


def _ranks_table(ranks: Ranks) -> str:
    """Each rank's budget side by side, ms a step."""
    names = sorted({name for rank in ranks.ranks for name in rank.components_ns})
    rows = [["rank", "step", *names]]
    for rank in ranks.ranks:
        cells = [f"{rank.components_ns.get(name, 0.0) / 1e6:.1f}" for name in names]
        mark = " ◄ the others wait for it" if rank.rank == ranks.slowest else ""
        rows.append([str(rank.rank), f"{rank.step_ns / 1e6:.1f}", *cells, mark])
    return "\n Ranks, ms a step\n" + _aligned(rows)


def _changes(before: Diagnosis, after: Diagnosis) -> str:
    """What changed in the budget, largest change first, ms a step."""
    old = {part.component: part.ns for part in before.budget}
    new = {part.component: part.ns for part in after.budget}
    names = sorted(old.keys() | new.keys(), key=lambda n: -abs(new.get(n, 0) - old.get(n, 0)))
    rows = [["component", "before", "now", "change"]]
    for name in [*names, "step"]:
        a = sum(old.values()) if name == "step" else old.get(name, 0)
        b = sum(new.values()) if name == "step" else new.get(name, 0)
        rows.append([name, f"{a / 1e6:.1f}", f"{b / 1e6:.1f}", f"{(b - a) / 1e6:+.1f}"])
    verdicts = f"  verdict before: {before.verdict.cls}, now: {after.verdict.cls}\n"
    return "\n What changed, ms a step\n" + _aligned(rows) + verdicts


def _aligned(rows: list[list[str]]) -> str:
    widths = [max(len(row[i]) for row in rows if i < len(row)) for i in range(len(rows[0]))]
    lines = []
    for row in rows:
        cells = [cell.rjust(width) for cell, width in zip(row, widths, strict=False)]
        lines.append("  " + "  ".join(cells) + "".join(row[len(widths) :]))
    return "\n".join(line.rstrip() for line in lines) + "\n"
