"""`tdiag check`: has a training step become slower, or does it do more work than before?"""

from __future__ import annotations

import re
import signal
from pathlib import Path
from time import monotonic
from typing import Annotated, Literal, NoReturn

import typer

from tdiag.cli.options import GateFormat, Output, Soft
from tdiag.cli.run import MISSES, TARGET, RunCommand

_SHARE = re.compile(r"(\d+(?:\.\d*)?|\.\d+)(%?)")


class CheckCommand(RunCommand):
    usual = "tdiag check --against REV"


def check(
    context: typer.Context,
    against: Annotated[
        str | None,
        typer.Option(
            metavar="REV",
            help="Git revision to compare with. Both versions run interleaved on this machine.",
        ),
    ] = None,
    baseline: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Stored baseline to compare with: its work counters, and a run of the commit"
            " at which it was written.",
        ),
    ] = None,
    update: Annotated[
        bool, typer.Option("--update", help="Write the baseline file instead of checking.")
    ] = False,
    max_regression: Annotated[
        str | None,
        typer.Option(
            metavar="SHARE",
            help="Slowdown of the step that fails the check. Default: 1.5% with --against; with"
            " --baseline the value in the file, 5% in a new file.",
        ),
    ] = None,
    max_growth: Annotated[
        str | None,
        typer.Option(
            metavar="SHARE",
            help="Growth of a work counter that fails the check. Default: 5%,"
            " or the value in the baseline file.",
        ),
    ] = None,
    groups: Annotated[
        int,
        typer.Option(
            min=5,
            metavar="N",
            help="Most groups of fresh processes; the result is tested after each third of them.",
        ),
    ] = 15,
    time_budget: Annotated[
        float,
        typer.Option(
            min=1,
            metavar="SECONDS",
            help="After this time, decide by the groups measured so far (at least five).",
        ),
    ] = 600.0,
    soft: Soft = False,
    python: Annotated[
        str | None,
        typer.Option(metavar="PATH", help="Python interpreter of the script's environment."),
    ] = None,
    format: GateFormat = "terminal",
    json: Annotated[bool, typer.Option("--json", help="Short for --format json.")] = False,
    output: Output = None,
    history: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Append the result to this file, which `tdiag history` shows."
        ),
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print no progress lines.")] = False,
) -> None:
    """Fail when a training step became slower or does more work.

    tdiag check train.py --against origin/main

    tdiag check train.py --baseline tdiag-baseline.json --update

    tdiag check train.py --baseline tdiag-baseline.json --max-regression 5%

    Exit code: 0 pass, 1 regressed, 2 wrong usage or the script failed, 3 inconclusive: too noisy
    to decide.
    """
    from tdiag.cli.conclude import open_output
    from tdiag.cli.defaults import typed
    from tdiag.cli.html_page import chosen_format
    from tdiag.cli.publish import put
    from tdiag.cli.streams import say
    from tdiag.duel.estimate import Looks
    from tdiag.errors import UsageError
    from tdiag.gate import against as duels
    from tdiag.gate import stored
    from tdiag.gate.against import CheckOptions
    from tdiag.gate.history_file import append, record_of
    from tdiag.gate.revision import Head, head
    from tdiag.launch import rundir
    from tdiag.report import check_format

    if against is not None and baseline is not None:  # one may be a default from pyproject.toml
        against = against if typed(context, "against") else None
        baseline = baseline if typed(context, "baseline") else None
    if (against is None) == (baseline is None):
        raise UsageError("specify --against REV or --baseline FILE (one of them)",
                         "tdiag check train.py --against origin/main")  # fmt: skip
    if update and baseline is None:
        raise UsageError("--update needs the file to write: --baseline FILE")
    chosen = chosen_format(format, json=json, html=False)
    check_format(chosen)
    if history is not None and update:
        raise UsageError(
            "--update runs no check, so --history has nothing to record", "leave out one of them"
        )
    target = context.meta[TARGET]
    threshold, tolerance = duels.THRESHOLD, duels.TOLERANCE
    if baseline is not None:
        threshold, tolerance = stored.limits(target, baseline)
    if max_regression:
        threshold = share(max_regression, "--max-regression")
    if max_growth:
        tolerance = share(max_growth, "--max-growth")
    for word, meant in context.meta[MISSES]:
        say(f"tdiag: {word} is passed to the script; did you mean {meant}?")
    signal.signal(signal.SIGTERM, terminated)
    before = (
        head(history) if history is not None else Head()
    )  # read now: the user may edit the file during the run
    with open_output(output) as file:
        options = CheckOptions(
            folder=rundir.create_check(target.label()),
            threshold=threshold,
            tolerance=tolerance,
            python=python,
            looks=Looks(looks(groups), monotonic() + time_budget),
            progress=(lambda line: None) if quiet else (lambda line: say(f"tdiag: {line}")),
        )
        if baseline is not None and update:
            say(f"tdiag: {stored.update(target, baseline, options)}")
            return
        if baseline is not None:
            outcome = stored.check_stored(target, baseline, options)
        else:
            outcome = duels.check_against(target, str(against), options)
        if history is not None:
            kind: Literal["baseline", "revision"] = "revision" if against else "baseline"
            append(history, record_of(outcome, kind, before))
        put(outcome, chosen, file)
    raise typer.Exit(0 if soft else outcome.exit_code)


def share(text: str, option: str) -> float:
    """``5%`` or ``0.05`` as 0.05. Raises UsageError for anything else."""
    from tdiag.errors import UsageError

    found = _SHARE.fullmatch(text.strip())
    value = float(found[1]) / (100 if found[2] else 1) if found else 0.0
    if not 0 < value <= 10:
        raise UsageError(f"{option} {text} is not a share", f"write {option} 5% or {option} 0.05")
    return value


def looks(groups: int) -> tuple[int, ...]:
    """Test the result after each third of the groups (tdiag/duel/estimate.py), at least five
    each."""
    return tuple(sorted({max(5, round(groups * third / 3)) for third in (1, 2, 3)}))


def terminated(number: int, frame: object) -> NoReturn:
    """Raise an exception, so that all child processes are ended and the worktree is removed."""
    raise SystemExit(128 + number)
