"""Options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

HourlyCost = Annotated[
    float | None,
    typer.Option(
        "--hourly-cost",
        min=0.0,
        metavar="PRICE",
        help="Price of the machine per hour, in any currency: adds a table of time and money.",
    ),
]
Output = Annotated[
    Path | None,
    typer.Option("--output", "-o", metavar="FILE", help="Write to this file instead of stdout."),
]
MaxGrowth = Annotated[
    str, typer.Option(metavar="SHARE", help="Growth of a work counter that fails the check.")
]
Soft = Annotated[bool, typer.Option("--soft", help="Report only: never exit with 1 or 3.")]
GateFormat = Annotated[
    str,
    typer.Option("--format", "-f", help="terminal, json, line, markdown, sarif, junit or github."),
]
