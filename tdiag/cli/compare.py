"""`tdiag compare`: what differs between two finished runs."""

from __future__ import annotations

from typing import Annotated

import typer

from tdiag.cli.options import GateFormat, MaxGrowth, Output, Soft


def compare(
    before: Annotated[
        str,
        typer.Argument(
            metavar="RUN_A", help="The earlier run: its directory, or its name in .tdiag/runs."
        ),
    ],
    now: Annotated[str, typer.Argument(metavar="RUN_B", help="The later run.")],
    max_regression: Annotated[
        str | None,
        typer.Option(
            metavar="SHARE",
            help="Slowdown of the step that fails. Default: 16%, the"
            " difference between equal runs.",
        ),
    ] = None,
    max_growth: MaxGrowth = "5%",
    soft: Soft = False,
    format: GateFormat = "terminal",
    json: Annotated[bool, typer.Option("--json", help="Short for --format json.")] = False,
    output: Output = None,
) -> None:
    """Compare two finished runs: exact work counters, rough step times.

    To measure a difference of a few percent, run both interleaved: tdiag check --against REV.

    Exit code: 0 pass, 1 regressed, 2 wrong usage, 3 inconclusive (too noisy to decide).
    """
    from tdiag.cli.check import share
    from tdiag.cli.conclude import open_output
    from tdiag.cli.html_page import chosen_format
    from tdiag.cli.publish import put
    from tdiag.gate.offline import RUN_TO_RUN, compare_runs
    from tdiag.launch.rundir import find
    from tdiag.report import check_format

    chosen = chosen_format(format, json=json, html=False)
    check_format(chosen)
    threshold = share(max_regression, "--max-regression") if max_regression else RUN_TO_RUN
    with open_output(output) as file:
        tolerance = share(max_growth, "--max-growth")
        outcome = compare_runs(find(before), find(now), threshold, tolerance)
        put(outcome, chosen, file)
    raise typer.Exit(0 if soft else outcome.exit_code)
