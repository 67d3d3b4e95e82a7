"""`tdiag view`: opens a run or trace in TensorBoard, or writes it for Perfetto or speedscope."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from tdiag.errors import RunError
    from tdiag.view.tensorboard import View

# How fast the plugin reads a trace: 136,000 events in 11 s on one slow core.
PLUGIN_EVENTS_PER_S = 12_000
LONG_S = 5


def view(
    runs: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="RUN",
            help="Run directories or their names in .tdiag/runs, traces, or folders of ranks."
            " Default: the latest run.",
        ),
    ] = None,
    browser: Annotated[
        bool, typer.Option("--browser/--no-browser", help="Open the page in the browser.")
    ] = True,
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port on 127.0.0.1; 0 picks a free one.")
    ] = 0,
    steps: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="N",
            help="Show only the first N traced steps in the PyTorch Profiler tab, which takes"
            " minutes for a large trace.",
        ),
    ] = None,
    perfetto: Annotated[
        bool,
        typer.Option("--perfetto", help="Write the run's merged trace for Perfetto instead."),
    ] = False,
    speedscope: Annotated[
        bool, typer.Option("--speedscope", help="Write the run's stacks for speedscope instead.")
    ] = False,
    google_charts: Annotated[
        bool,
        typer.Option(
            "--google-charts",
            help="Draw the PyTorch Profiler tab with Google Charts (needs the internet).",
        ),
    ] = False,
) -> None:
    """Show runs in TensorBoard, until Ctrl-C.

    Step times, budget, system curves, the report, and the PYTORCH_PROFILER tab, which reads the
    trace. None of this needs the internet.

    tdiag view --perfetto writes trace.perfetto.json.gz into the run directory, --speedscope writes
    stacks.speedscope.json, and both say how to open it.
    """
    if perfetto or speedscope:
        from tdiag.view import perfetto as merged
        from tdiag.view import speedscope as stacks

        for run in _named(runs):
            if perfetto:
                _write(run, merged.write, merged.OPENING)
            if speedscope:
                _write(run, stacks.write, stacks.OPENING)
    else:
        _serve(_named(runs), browser, port, steps, google_charts)


def _named(runs: list[str] | None) -> Sequence[str | None]:
    return runs or (None,)


def _write(run: str | None, write: Callable[[Path], tuple[Path, list[str]]], opening: str) -> None:
    """Write one file into a run directory, and say how to open it."""
    from tdiag.cli.streams import say
    from tdiag.errors import UsageError
    from tdiag.evidence.from_run.machines import home_of
    from tdiag.launch.rundir import find

    if _is_trace(run):
        hint = "open the trace in the viewer directly"
        raise UsageError(f"{run} is a trace, not a run: there is nothing to merge", hint)
    run_dir = home_of(find(run))
    try:
        path, notes = write(run_dir)
    except OSError as error:
        raise _unwritable(run_dir, error) from None
    print(os.path.relpath(path) + opening, end="", flush=True)
    for note in notes:
        say(f"tdiag: {note}")


def _is_trace(run: str | None) -> bool:
    """Whether this path is no run: neither a run's name, nor a folder with a run.json."""
    from tdiag.launch.rundir import RUNS

    return run is not None and Path(run).exists() and not any(
        (place / "run.json").is_file() for place in (Path(run), RUNS / run)
    )  # fmt: skip


def _serve(
    runs: Sequence[str | None],
    open_browser: bool,
    port: int,
    steps: int | None,
    google_charts: bool,
) -> None:
    """Prepare each run, serve them all, and wait for Ctrl-C."""
    import tempfile

    from tdiag.cli.streams import say
    from tdiag.view.server import serve
    from tdiag.view.tensorboard import gather

    # A signal that ends tdiag (kill, a closed terminal) ends TensorBoard too.
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler)
    with tempfile.TemporaryDirectory(prefix="tdiag-view-") as folder:
        scratch = Path(folder)
        try:
            views = [_view(run, scratch / str(n), steps) for n, run in enumerate(runs)]
            for note in (note for view in views for note in view.notes):
                say(f"tdiag: {note}")
            logdir = gather(views, scratch / "runs")
            title = "tdiag: " + ", ".join(view.folder.name for view in views)
            with serve(logdir, title, scratch, port, google_charts) as server:
                _tell(server.url, sum(view.events for view in views))
                if open_browser and _has_browser():
                    import webbrowser

                    webbrowser.open(server.url)
                server.wait()
        except KeyboardInterrupt:
            pass


def _view(run: str | None, scratch: Path, steps: int | None) -> View:
    """The folder of one run, trace or folder of ranks."""
    from tdiag.cli.analyze import read_ranks
    from tdiag.cli.conclude import conclude
    from tdiag.diagnose import diagnose
    from tdiag.evidence.from_run.machines import home_of
    from tdiag.launch.rundir import find
    from tdiag.report.load import load_diagnosis
    from tdiag.view import tensorboard

    try:
        if run is not None and _is_trace(run):
            ranks, evidence = read_ranks([Path(run)])
            name = Path(run).resolve().name
            return tensorboard.of_traces(name, ranks, diagnose(evidence), scratch, steps)
        run_dir = find(run)
        kept = (run_dir / "diagnosis.json").is_file()
        diagnosis = load_diagnosis(run_dir) if kept else conclude(run_dir)
        return tensorboard.of_run(home_of(run_dir), diagnosis, scratch, steps)
    except OSError as error:
        raise _unwritable(scratch, error) from None


def _unwritable(folder: Path, error: OSError) -> RunError:
    from tdiag.errors import RunError

    return RunError(
        f"cannot write in {folder}: {error.strerror or error}",
        "free some space, or copy the run to a folder that you may write to",
    )


def _tell(url: str, events: int) -> None:
    """Print the address, what it shows, and how to end it."""
    print(f"TensorBoard: {url}")
    print("  Time Series, Text: steps, budget, system, the report")
    if events:
        seconds = events / PLUGIN_EVENTS_PER_S
        print("  PyTorch Profiler: the trace")
        if seconds > LONG_S:
            print(f"    ready in about {seconds:.0f} s; --steps N shows only N of its steps")
    if "SSH_CONNECTION" in os.environ:
        there = url.split("://")[1].strip("/")
        print(f"  From your own machine: ssh -L {there.split(':')[1]}:{there} THIS-HOST")
    print("Ctrl-C ends it.", flush=True)


def _has_browser() -> bool:
    """False where only a text browser could start: it would replace this command's output."""
    return sys.platform == "darwin" or any(
        os.environ.get(name) for name in ("BROWSER", "DISPLAY", "WAYLAND_DISPLAY")
    )
