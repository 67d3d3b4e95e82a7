"""`tdiag run`: launches, watches, diagnoses and reports; exits with the script's exit code."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

from tdiag.cli.options import HourlyCost

if TYPE_CHECKING:
    from tdiag.launch.session import Finished
    from tdiag.model.diagnosis import Diagnosis

TARGET, MISSES = "tdiag.target", "tdiag.misses"


class RunCommand(TyperCommand):
    """Takes tdiag's options out of the command line wherever they are; the rest is the script's.

    Click cannot do this: it would read a script's ``-foo 1`` as ``-f -o …``, and it loses the
    position of ``--``.
    """

    usual = "tdiag run"  # how the command usually begins

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        from tdiag.launch.target import near_misses, split

        own = {
            name: not getattr(option, "is_flag", False)
            for option in self.get_params(ctx)
            for name in (*option.opts, *option.secondary_opts)
        }
        words = args
        args, target = split(words, own, self.usual)
        ctx.meta[TARGET], ctx.meta[MISSES] = target, near_misses(words, target, own)
        return super().parse_args(ctx, args)

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        return ["[OPTIONS]", "SCRIPT | -m MODULE | -- LAUNCHER", "[ARGS]..."]


def run(
    context: typer.Context,
    profiling: Annotated[
        bool,
        typer.Option(
            "--profiling",
            help="End the run as soon as the evidence is complete. Also passed on if the script"
            " declares this option.",
        ),
    ] = False,
    steps: Annotated[
        int | None, typer.Option(min=1, help="End the windows after this many steps.")
    ] = None,
    time_budget: Annotated[
        float,
        typer.Option(
            min=1,
            metavar="SECONDS",
            help="End the windows after this many seconds from the first step.",
        ),
    ] = 60.0,
    syscalls: Annotated[
        bool,
        typer.Option(
            "--syscalls",
            help="Also count system calls with strace, in a window of its own; see"
            " `tdiag report --syscalls`.",
        ),
    ] = False,
    python: Annotated[
        str | None,
        typer.Option(
            metavar="PATH",
            help="Python interpreter of the script's environment. It needs torch, not tdiag.",
        ),
    ] = None,
    out: Annotated[
        str | None,
        typer.Option(
            "--out",
            "--run-dir",
            metavar="DIR",
            help="Run directory to write, instead of a new one in .tdiag/runs. On several machines,"
            " the same shared folder on each, or a URL (s3://BUCKET/RUN) to which each machine"
            " copies its run directory at the end.",
        ),
    ] = None,
    json: Annotated[
        bool,
        typer.Option(
            "--json",
            help="Print the diagnosis as JSON on stdout; the script's stdout goes to stderr.",
        ),
    ] = False,
    hourly_cost: HourlyCost = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", metavar="FILE", help="Also write the diagnosis as JSON to this file."
        ),
    ] = None,
    quiet: Annotated[
        bool,
        typer.Option("--quiet", "-q", help="Print only the verdict, on one line."),
    ] = False,
    try_: Annotated[
        bool,
        typer.Option(
            "--try",
            help="Then measure what the findings' fixes gain: the script runs several more times."
            " See `tdiag try`.",
        ),
    ] = False,
    try_budget: Annotated[
        float, typer.Option(min=1, metavar="SECONDS", help="Time limit for all trials of --try.")
    ] = 120.0,
    patch: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="With --try: write what won as a patch of your files, if the patched script"
            " is faster.",
        ),
    ] = None,
    scaling: Annotated[
        str | None,
        typer.Option(
            metavar="COUNTS",
            help="Run the job once with each of these numbers of ranks (1,2,4), each time as with"
            " --profiling, and say why N ranks are not N times as fast.",
        ),
    ] = None,
    sampler: Annotated[
        str, typer.Option(help="Stack sampler: py-spy, in-process or off.")
    ] = "py-spy",
) -> None:
    """Diagnose an unmodified training script.

    Runs it as plain Python would and reports where its step time goes.

    tdiag run train.py --profiling --epochs 2

    tdiag run train.py --profiling --try

    tdiag run train.py --profiling --try --patch fix.patch

    tdiag run -m package.train --profiling

    tdiag run --profiling -- torchrun --nproc-per-node 2 train.py

    tdiag run --scaling 1,2 -- torchrun train.py

    tdiag's options may appear anywhere before `--`; all other options are the script's. After the
    script, an option that the script declares itself is the script's, too. The exit code is the
    script's. Ctrl-C interrupts the script and reports what was measured; a second one cancels the
    report.
    """
    from tdiag.cli.conclude import check_cost, open_output
    from tdiag.cli.streams import say
    from tdiag.errors import UsageError
    from tdiag.launch.session import SAMPLERS, RunOptions, launch

    check_cost(hourly_cost, "json" if json else "terminal")
    if scaling is not None:
        from tdiag.cli.run_scaling import check_alone, check_local, run_scaling

        check_alone(try_=try_, patch=patch, hourly_cost=hourly_cost)
        check_local(out)
    if sampler not in SAMPLERS:
        raise UsageError(f"--sampler {sampler} is not one of {', '.join(SAMPLERS)}")
    if patch:
        from tdiag.cli.patch import check_free

        if not try_:
            raise UsageError("--patch writes the changes that won in trials", "add --try")
        check_free(patch)
    for word, meant in context.meta[MISSES]:
        say(f"tdiag: {word} is passed to the script; did you mean {meant}?")
    options = RunOptions(
        profiling=profiling,
        steps=steps,
        time_budget_s=time_budget,
        python=python,
        sampler=sampler,
        syscalls=syscalls,
        quiet=quiet,
        stdout_to_stderr=json,
    )
    target = context.meta[TARGET]
    with open_output(output) as written:
        if scaling is not None:
            folder = Path(out) if out else None
            code = run_scaling(scaling, target, options, folder, written, as_json=json, quiet=quiet)
            raise typer.Exit(code)
        outcome = launch(target, options, out, _distil)
        _report(outcome, as_json=json, quiet=quiet, written=written, hourly_cost=hourly_cost,
                try_budget=try_budget if try_ else None, patch=patch)  # fmt: skip
    raise typer.Exit(outcome.code)


def _distil(part: Path) -> None:
    """So that whoever reports on the job need not read all records of this machine's ranks."""
    from tdiag.evidence.from_run.distil import read_part

    read_part(part)


def _report(
    outcome: Finished, *, as_json: bool, quiet: bool, written: Any, hourly_cost: float | None,
    try_budget: float | None, patch: Path | None,
) -> None:  # fmt: skip
    """Diagnose and print. Whatever fails here, the run is kept and the script's exit code does not
    change; hence the broad ``except``, the only one outside the probe."""
    import traceback

    from tdiag.cli import complain
    from tdiag.cli.conclude import conclude, documented, shown
    from tdiag.cli.html_page import write_page
    from tdiag.cli.streams import say, write
    from tdiag.errors import TdiagError

    again = f"the run is kept: tdiag report {outcome.name}"
    if not outcome.report_wanted:
        complain(TdiagError("interrupted twice: no report", again))
        return
    if outcome.awaited:
        for note in outcome.notes:
            say(f"tdiag: {note}")
        where = ", ".join(dict.fromkeys(outcome.awaited))
        say(
            f"tdiag: the job still runs on {where}; the last machine to end makes the report."
            f" For the report so far: tdiag report {outcome.name}"
        )
        return
    try:
        from tdiag.evidence.from_run import load_run

        evidence = load_run(outcome.run_dir)
        diagnosis = conclude(outcome.run_dir, evidence)
        if try_budget is not None and not outcome.code:
            _try(outcome.run_dir, diagnosis, try_budget, patch, quiet)
            diagnosis = conclude(outcome.run_dir, evidence)
        document = documented(diagnosis, hourly_cost=hourly_cost)
        if written is not None:
            written.truncate(0)
            written.write(shown("json", document, written))
        if as_json:
            write(sys.stdout, shown("json", document, sys.stdout))
        else:
            name = "line" if quiet else "terminal"
            write(sys.stderr, shown(name, document, sys.stderr, outcome.run_dir))
        page = write_page(outcome.run_dir, diagnosis, evidence)  # last, because nobody waits for it
        if not (as_json or quiet):
            say(f"tdiag: report page: {os.path.relpath(page)}")
        if outcome.far:
            kept = (outcome.run_dir / name for name in ("diagnosis.json", "trials.json"))
            outcome.far.put(*kept, page)
        return
    except TdiagError as error:
        complain(TdiagError(error.message, error.hint or again))
    except BrokenPipeError:
        return  # the reader has gone
    except KeyboardInterrupt:
        complain(TdiagError("report interrupted", again))
    except Exception as error:
        log = outcome.run_dir / "diagnosis-error.txt"
        complain(TdiagError(f"tdiag itself failed: {type(error).__name__}: {error}",
                            f"{again}; the traceback is in {os.path.relpath(log)}"))  # fmt: skip
        try:
            log.write_text(traceback.format_exc())
        except OSError:
            say(traceback.format_exc())
    for note in outcome.notes:
        say(f"tdiag: {note}")


def _try(
    run_dir: Path, diagnosis: Diagnosis, time_budget_s: float, patch: Path | None, quiet: bool
) -> None:
    """Measure what the diagnosis proposes, and keep the result with the run."""
    import signal

    from tdiag.cli.check import terminated
    from tdiag.cli.streams import say
    from tdiag.cli.tried import SAID, keep, try_proposals

    def progress(line: str) -> None:
        if not quiet:
            say(f"tdiag: {line}")

    progress(f"running the script {SAID}")
    signal.signal(signal.SIGTERM, terminated)
    keep(run_dir, try_proposals(run_dir, diagnosis, time_budget_s, progress, patch))
