"""`tdiag analyze`: the report of traces that torch.profiler recorded, here or elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated

import typer

from tdiag.cli.options import HourlyCost, Output
from tdiag.errors import RunError, UsageError

if TYPE_CHECKING:
    from tdiag.diagnose.trace_differences import TracedRun
    from tdiag.evidence.from_trace.trace_files import TracedFile
    from tdiag.evidence.store import Evidence
    from tdiag.trace.inflate import Progress

COMPARING = ("terminal", "json", "line", "markdown", "html")
SHOWN_BYTES = 20 << 20  # smaller files are read too fast for a progress bar


def analyze(
    paths: Annotated[
        list[str],
        typer.Argument(
            metavar="PATH...",
            help="Traces (.json, .json.gz), a TensorBoard log folder, a folder of ranks, or a URL"
            " (s3://BUCKET/FOLDER).",
        ),
    ],
    against: Annotated[
        str | None,
        typer.Option(
            "--against",
            metavar="PATH",
            help="Show what changed since this trace, below the report (other formats: only that).",
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
        typer.Option("--all", help="Show every finding and every rule that could not be checked."),
    ] = False,
    executor: Annotated[
        str,
        typer.Option(
            metavar="WHERE",
            help="Where to read several files: processes (this machine), dask://HOST:PORT or"
            " ray://HOST:PORT, with a cluster whose workers see the files under the same paths or"
            " behind the same URL.",
        ),
    ] = "processes",
    hourly_cost: HourlyCost = None,
    output: Output = None,
) -> None:
    """Report where the device's time goes in torch.profiler traces.

    Several traces of one job (its ranks) give one report, for the rank that the others wait for.
    """
    from tdiag.cli.conclude import check_cost, documented, open_output, shown
    from tdiag.cli.html_page import chosen_format, say_where
    from tdiag.cli.streams import write
    from tdiag.diagnose.trace_differences import compare
    from tdiag.report import check_format
    from tdiag.report.of_comparison import document as compared

    name = chosen_format(format, json=json, html=html)
    check_format(name)
    check_cost(hourly_cost, name)
    if against and name not in COMPARING:
        raise UsageError(f"--against has no {name} format", f"there are: {', '.join(COMPARING)}")
    named = None
    if name == "html" and output is None:
        named = output = Path(f"{Path(paths[0]).resolve().name.partition('.')[0] or 'trace'}.html")
    with ExitStack() as stack:
        file = stack.enter_context(open_output(output))
        now = _read(_here(paths, executor, stack), executor)
        stream = file or sys.stdout
        text = ""
        if not against or name == "terminal":
            evidence = now.evidence if name == "html" else None
            document = documented(now.diagnosis, hourly_cost=hourly_cost, evidence=evidence)
            text = shown(name, document, stream, all_findings=all_findings)
        if against:
            before = _read(_here([against], executor, stack), executor)
            difference = compared(compare(before, now))
            text += shown(name, difference, stream, all_findings=all_findings)
        if file is not None:
            file.truncate(0)
        write(stream, text)
    if named:
        say_where(named)


def _here(paths: list[str], executor: str, stack: ExitStack) -> tuple[list[Path], dict[Path, str]]:
    """Each path; of a URL its copy, or for a cluster, whose workers copy what they read, files that
    stand for those behind it, with their URLs."""
    from tdiag.evidence.from_trace.executors import PROCESSES
    from tdiag.evidence.from_trace.trace_files import SUFFIXES
    from tdiag.launch.remote import fetched, is_url, listed

    found: list[Path] = []
    urls: dict[Path, str] = {}
    for path in paths:
        if not is_url(path):
            found.append(Path(path))
        elif executor == PROCESSES:
            found.append(stack.enter_context(fetched(path, lambda n: n.endswith(SUFFIXES))))
        else:
            here, there = stack.enter_context(listed(path, lambda n: n.endswith(SUFFIXES)))
            found.append(here)
            urls |= there
    return found, urls


def _behind(path: Path, urls: Mapping[Path, str]) -> TracedFile | RunError:
    """Runs in a cluster's worker: reads the file, or what lies behind the URL that it stands
    for."""
    from tdiag.evidence.from_trace.executors import read_alone
    from tdiag.launch.remote import fetched

    if path not in urls:
        return read_alone(path)
    try:
        with fetched(urls[path]) as copy:
            return read_alone(copy)
    except RunError as error:
        return error


def _read(sources: tuple[list[Path], dict[Path, str]], executor: str) -> TracedRun:
    from tdiag.diagnose import diagnose
    from tdiag.diagnose.trace_differences import TracedRun

    paths, urls = sources
    read = partial(_behind, urls=urls) if urls else None
    evidence = read_ranks(paths, executor, read)[1]
    return TracedRun(diagnose(evidence), evidence)


def read_ranks(
    paths: list[Path],
    executor: str = "processes",
    read: Callable[[Path], TracedFile | RunError] | None = None,
) -> tuple[dict[int, TracedFile], Evidence]:
    """The readable traces by rank, and the evidence of their job. ``read``: how a cluster's worker
    reads a file, if not from its path.

    Raises RunError if no trace can be read, UsageError if they are not the ranks of one job.
    """
    from tdiag.evidence.from_trace.executors import PROCESSES, read_many
    from tdiag.evidence.from_trace.ranks_of_traces import merge_ranks
    from tdiag.evidence.from_trace.trace_files import find_traces, or_error, unrelated

    files = find_traces(paths)
    with _progress(files) as progress:
        if len(files) == 1 and executor == PROCESSES:
            results = [or_error(files[0], progress)]
        else:
            results = read_many(files, executor, progress, read)
    errors = [found for found in results if isinstance(found, RunError)]
    whole = [found for found in results if not isinstance(found, RunError)]
    if not whole:
        raise errors[0]
    by_rank = {_rank(found, index): found for index, found in enumerate(whole)}
    if len(by_rank) < len(whole):
        raise UsageError(
            "these traces are not the ranks of one job: some have the same rank number",
            "analyze them one by one, or compare two with --against",
        )
    if why := unrelated(whole):
        raise UsageError(
            f"these traces are not the ranks of one job: {why}",
            "analyze them one by one, or compare two with --against",
        )
    evidence = merge_ranks({rank: found.evidence for rank, found in by_rank.items()})
    for error in errors:
        evidence.note("trace-unread", error.message, "warning")
    for path in paths:
        if (path / "diagnosis.json").is_file():
            evidence.note(
                "trace-of-run",
                f"{path} is a tdiag run, and this report uses only its trace. For the whole run:"
                f" tdiag report {quote(str(path))}",
                "warning",
            )
    return by_rank, evidence


def _rank(found: TracedFile, index: int) -> int:
    return index if found.rank is None else found.rank


@contextmanager
def _progress(files: list[Path]) -> Iterator[Progress | None]:
    """A progress bar on stderr, in a terminal: bytes read of one large file, or files read."""
    many = len(files) > 1
    small = not many and (not files[0].is_file() or files[0].stat().st_size < SHOWN_BYTES)
    if small or not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.markup import escape
    from rich.progress import BarColumn, DownloadColumn, MofNCompleteColumn, Progress, TextColumn
    from rich.table import Column

    # The name comes last and takes the remaining width, so that a long name hides nothing.
    name = TextColumn("{task.description}", table_column=Column(ratio=1, no_wrap=True))
    done = MofNCompleteColumn() if many else DownloadColumn()
    columns = (TextColumn("reading"), BarColumn(bar_width=24), done, name)
    with Progress(*columns, console=Console(stderr=True), transient=True, expand=True) as bar:
        task = bar.add_task("files" if many else escape(files[0].name), total=None)
        yield lambda done, size: bar.update(task, completed=done, total=size)
