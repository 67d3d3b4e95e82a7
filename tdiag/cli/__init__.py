"""The `tdiag` command. One file a command; what a command needs is imported when it runs, so that
`tdiag --help` costs what typer itself costs. Errors are caught here and nowhere else."""

from __future__ import annotations

import sys

import typer

from tdiag.cli import doctor, explain, report, rules, run
from tdiag.errors import TdiagError

INTERRUPTED = 130  # 128 + SIGINT, as a shell says

app = typer.Typer(
    help="Says why PyTorch training is slow, with measured evidence, from an unmodified script.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
app.command("run", cls=run.RunCommand)(run.run)
app.command("report")(report.report)
app.command("explain")(explain.explain)
app.command("rules")(rules.rules)
app.command("doctor")(doctor.doctor)


def main() -> None:
    """Entry point: one clear message and the right exit code, never a traceback of ours."""
    try:
        app(prog_name="tdiag")
    except TdiagError as error:
        complain(error)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)


def complain(error: TdiagError) -> None:
    """``tdiag: what happened``, and what to do, on stderr."""
    print(f"tdiag: {error.message}", file=sys.stderr)
    if error.hint:
        print(f"  {error.hint}", file=sys.stderr)
