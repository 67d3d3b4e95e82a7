"""Options that several commands have in common."""

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
        help="What the machine costs an hour: adds time versus money.",
    ),
]
Output = Annotated[
    Path | None,
    typer.Option("--output", "-o", metavar="FILE", help="Write to this file instead of stdout."),
]
MaxGrowth = Annotated[
    str, typer.Option(metavar="SHARE", help="Growth of a work counter that fails.")
]
Soft = Annotated[bool, typer.Option("--soft", help="Report only: exit 0 or 2.")]
GateFormat = Annotated[
    str,
    typer.Option("--format", "-f", help="terminal, json, line, markdown, sarif, junit or github."),
]
