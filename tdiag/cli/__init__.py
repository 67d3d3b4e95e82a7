"""The `tdiag` command. Each command has its own file, and each imports what it needs when it runs,
so `tdiag --help` is as fast as typer itself. Errors are caught only here."""

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

INTERRUPTED = 130  # 128 + SIGINT, as in a shell
# New objects between two garbage collections. Python's own 700 to 2,000 make a hundred collections
# (40 ms) during imports, which create no garbage.
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
    """Entry point: prints one clear message and exits with the right code, never with a traceback.

    The process ends here at once: Python's own shutdown, which frees every object, took 0.1 s of
    the 0.7 s for a report of an 80 MB trace.
    """
    gc.set_threshold(COLLECT_EVERY)
    streams.stand_in()
    code = _code()
    streams.drain(sys.stdout)
    streams.drain(sys.stderr)
    os._exit(code)


def _code() -> int:
    """The exit code. Typer ends with SystemExit, perhaps with output still in the buffer."""
    try:
        try:
            app(prog_name="tdiag")
        except SystemExit as end:
            if end.code:
                return end.code if isinstance(end.code, int) else 1
        streams.write(sys.stdout, "")
    except OSError as error:  # from a command's own print
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
    """Print ``tdiag: what happened`` and the hint on stderr."""
    streams.say(f"tdiag: {error.message}")
    if error.hint:
        streams.say(f"  {error.hint}")
