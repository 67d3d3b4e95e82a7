"""The `tdiag` command. One file a command; what a command needs is imported when it runs, so that
`tdiag --help` costs what typer itself costs. Errors are caught here and nowhere else."""

from __future__ import annotations

import gc
import os
import sys
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from tdiag import __version__
from tdiag.cli import (
    analyze,
    attach,
    check,
    compare,
    defaults,
    doctor,
    explain,
    history,
    mcp,
    report,
    rules,
    run,
    streams,
    trial,
    view,
)
from tdiag.errors import RunError, TdiagError

INTERRUPTED = 130  # 128 + SIGINT, as a shell says
# New objects between two garbage collections. Python's own 700 to 2,000 are for programs
# that make some; importing makes none, and they were looked for some hundred times (40 ms).
COLLECT_EVERY = 100_000

app = typer.Typer(
    help="Find out why PyTorch training is slow. Measures an unmodified script.",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


def _version(wanted: bool) -> None:
    if wanted:
        print(f"tdiag {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_version, help="Show the version.")
    ] = False,
) -> None:
    group = context.command
    context.default_map = defaults.defaults(Path.cwd(), getattr(group, "commands", {}))


app.command("run", cls=run.RunCommand)(run.run)
app.command("attach")(attach.attach)
app.command("check", cls=check.CheckCommand)(check.check)
app.command("try", cls=trial.TryCommand)(trial.try_)
app.command("compare")(compare.compare)
app.command("history")(history.history)
app.command("analyze")(analyze.analyze)
app.command("report")(report.report)
app.command("view")(view.view)
app.command("explain")(explain.explain)
app.command("rules")(rules.rules)
app.command("doctor")(doctor.doctor)
app.command("mcp")(mcp.mcp)


def main() -> NoReturn:
    """Entry point: one clear message and the right exit code, never a traceback of tdiag.

    The process ends here at once. To take apart what it holds, as Python does in the end, took
    0.1 s of the 0.7 s that a report of an 80 MB trace takes; nothing needs that.
    """
    gc.set_threshold(COLLECT_EVERY)
    streams.stand_in()
    code = _code()
    streams.drain(sys.stdout)
    streams.drain(sys.stderr)
    os._exit(code)


def _code() -> int:
    """The exit code. Typer ends with SystemExit, what it printed perhaps still in the buffer."""
    try:
        try:
            app(prog_name="tdiag")
        except SystemExit as end:
            if end.code:
                return end.code if isinstance(end.code, int) else 1
        streams.write(sys.stdout, "")
    except OSError as error:  # of what a command printed by itself
        streams.discard(sys.stdout)
        lost = RunError(f"cannot write the report: {error.strerror}")
        complain(lost)
        return lost.exit_code
    except TdiagError as error:
        complain(error)
        return error.exit_code
    except KeyboardInterrupt:
        return INTERRUPTED
    return 0


def complain(error: TdiagError) -> None:
    """``tdiag: what happened``, and what to do, on stderr."""
    streams.say(f"tdiag: {error.message}")
    if error.hint:
        streams.say(f"  {error.hint}")
