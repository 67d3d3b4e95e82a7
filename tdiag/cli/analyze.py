"""`tdiag analyze`: the report of traces that torch.profiler recorded, here or elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tdiag.cli.options import HourlyCost, Output

if TYPE_CHECKING:
    from tdiag.diagnose.compare import Side
    from tdiag.evidence.device import Ranks, RankTime
    from tdiag.evidence.from_trace.files import TracedFile
    from tdiag.evidence.store import Evidence
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
        typer.Option(
            "--against",
            metavar="PATH",
            help="Say what changed since this trace, below the report; with --json nothing else.",
        ),
    ] = None,
    format: Annotated[
        str,
        typer.Option(
            "--format",
            "-f",
            help="terminal, html, json, line, markdown, sarif, junit or github.",
        ),
    ] = "terminal",
    json: Annotated[bool, typer.Option("--json", help="Short for --format json.")] = False,
    html: Annotated[
        bool,
        typer.Option(
            "--html", help="Short for --format html: a page, as TRACE.html here or to -o FILE."
        ),
    ] = False,
    all_findings: Annotated[
        bool,
        typer.Option("--all", help="Every finding and every rule that could not be checked."),
    ] = False,
    hourly_cost: HourlyCost = None,
    output: Output = None,
) -> None:
    """Say where the device's time goes in traces recorded by torch.profiler.

    Several traces of one job (its ranks) give one report: that of the rank the others wait for.
    """
    from tdiag.cli.conclude import check_cost, open_output, page_for, rendered, terminal_text
    from tdiag.cli.page import chosen_format, page_text, say_where
    from tdiag.cli.streams import write
    from tdiag.diagnose.compare import compare
    from tdiag.errors import UsageError
    from tdiag.evidence.device import Ranks
    from tdiag.report import changes

    name = chosen_format(format, json=json, html=html)
    check_cost(hourly_cost, name)
    if against and name not in ("terminal", "json"):
        raise UsageError(f"--against has no {name} format", "there are: terminal, json")
    named = None
    if name == "html" and output is None:
        named = output = Path(f"{paths[0].resolve().name.partition('.')[0] or 'trace'}.html")
    with open_output(output) as file:
        now = _read(paths)
        stream = file or sys.stdout
        if name == "terminal":
            text = terminal_text(now.diagnosis, None, stream, all_findings=all_findings,
                                 hourly_cost=hourly_cost)  # fmt: skip
            ranks = now.evidence.get(Ranks)
            page = page_for(stream, all_findings=all_findings)
            text += _ranks_table(ranks, page.width) if ranks else ""
            if against:
                text += changes.render(compare(_read([against]), now), page)
        elif against:
            text = changes.as_json(compare(_read([against]), now))
        elif name == "html":
            text = page_text(now.diagnosis, now.evidence)
        else:
            text = rendered(name, now.diagnosis, None)
        if file is not None:
            file.truncate(0)
        write(stream, text)
    if named:
        say_where(named)


def _read(paths: list[Path]) -> Side:
    from tdiag.diagnose import diagnose
    from tdiag.diagnose.compare import Side

    evidence = read_ranks(paths)[1]
    return Side(diagnose(evidence), evidence)


def read_ranks(paths: list[Path]) -> tuple[dict[int, TracedFile], Evidence]:
    """The readable ones of these traces by rank, and the evidence of their job.

    Raises RunError where none can be read, UsageError where they are not the ranks of one job.
    """
    from tdiag.errors import RunError, UsageError
    from tdiag.evidence.from_trace.files import find_traces, read_files
    from tdiag.evidence.from_trace.ranks import merge_ranks

    files = find_traces(paths)
    with _progress(files) as progress:
        results = read_files(files, progress)
    errors = [found for found in results if isinstance(found, RunError)]
    read = [found for found in results if not isinstance(found, RunError)]
    if not read:
        raise errors[0]
    by_rank = {_rank(found, index): found for index, found in enumerate(read)}
    if len(by_rank) < len(read):
        raise UsageError(
            "these traces are not the ranks of one job: some have the same rank",
            "analyze them one by one, or two of them with --against",
        )
    evidence = merge_ranks({rank: found.evidence for rank, found in by_rank.items()})
    for error in errors:
        evidence.note("trace-unread", error.message, "warning")
    return by_rank, evidence


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
    from rich.markup import escape
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn
    from rich.table import Column

    # The name comes last and takes what room there is, so that a long one hides nothing.
    name = TextColumn("{task.description}", table_column=Column(ratio=1, no_wrap=True))
    columns = (TextColumn("reading"), BarColumn(bar_width=24), DownloadColumn(), name)
    with Progress(*columns, console=Console(stderr=True), transient=True, expand=True) as bar:
        task = bar.add_task(escape(files[0].name), total=None)
        yield lambda done, size: bar.update(task, completed=done, total=size)


def _ranks_table(ranks: Ranks, width: int) -> str:
    """Each rank's budget side by side, ms a step: the components that fit, largest first.

    ``all comm``: communication, overlapped or not, by which the straggler is told.
    """
    from tdiag.diagnose.ranks import known_straggler
    from tdiag.model.diagnosis import MINOR_FRAC

    straggler = known_straggler(ranks)
    late = straggler.rank if straggler else None
    largest: dict[str, float] = {}
    for rank in ranks.ranks:
        for name, ns in rank.components_ns.items():
            largest[name] = max(largest.get(name, 0.0), ns / rank.step_ns)
    names = sorted((n for n in largest if largest[n] >= MINOR_FRAC), key=lambda n: -largest[n])
    text = _ranks_lines(ranks, late, names)
    while len(names) > 1 and max(map(len, text.splitlines())) > width:
        names.pop()
        text = _ranks_lines(ranks, late, names)
    legend = "  ◄ the others wait for it: it communicates least\n" if late else ""
    return "\n Ranks, ms a step\n" + text + legend


def _ranks_lines(ranks: Ranks, late: RankTime | None, names: list[str]) -> str:
    rows = [["rank", "step", "all comm", *names]]
    for rank in ranks.ranks:
        waiting = rank.communication_ns
        cells = [f"{rank.components_ns.get(name, 0.0) / 1e6:.1f}" for name in names]
        told = "?" if waiting is None else f"{waiting / 1e6:.1f}"
        mark = " ◄" if rank is late else ""
        rows.append([str(rank.rank), f"{rank.step_ns / 1e6:.1f}", told, *cells, mark])
    return _aligned(rows)


def _aligned(rows: list[list[str]]) -> str:
    widths = [max(len(row[i]) for row in rows if i < len(row)) for i in range(len(rows[0]))]
    lines = []
    for row in rows:
        cells = [cell.rjust(width) for cell, width in zip(row, widths, strict=False)]
        lines.append("  " + "  ".join(cells) + "".join(row[len(widths) :]))
    return "\n".join(line.rstrip() for line in lines) + "\n"
