"""``--hourly-cost``: what steps cost now, with a fix, and on a bigger machine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from rich.cells import cell_len
from typer.testing import CliRunner

from tdiag.cli import app
from tdiag.model.diagnosis import Component, Diagnosis, StepTime

from .building import MS, render
from .samples import GPU_H2D, HEALTHY, IO_BOUND, SAMPLES, UNKNOWN


def rows(diagnosis: Diagnosis, **options: Any) -> dict[str, list[str]]:
    """The cells of the table, by its first column."""
    shown = render("terminal", diagnosis, width=100, **options)
    table = shown.partition("Time and money")[2].partition("A fix keeps")[0].splitlines()[2:]
    cells = [[cell for cell in line.split("  ") if cell.strip()] for line in table if line.strip()]
    return {first.strip(): [cell.strip() for cell in rest] for first, *rest in cells}


def test_costs_follow_from_the_step_and_the_price() -> None:
    """100 ms a step are 27.8 hours for a million; a device twice as fast takes off half of its
    share, 60 ms, so that it may cost 100 ÷ 70 of the price; shown is twice the price."""
    step = msgspec.structs.replace(
        GPU_H2D,
        step=StepTime(100 * MS, 100 * MS, 100 * MS, 10),
        budget=(
            Component("compute", 60 * MS),
            Component("h2d", 36 * MS),
            Component("comm", 4 * MS),
        ),
        findings=(),
    )
    assert rows(step, hourly_cost=3.6) == {
        "now": ["100 ms", "100"],
        "a device twice as fast": ["70.0 ms", "140", "5.14 an hour"],
    }


def test_a_fix_costs_what_its_predicted_steps_cost() -> None:
    table = rows(IO_BOUND, hourly_cost=2.5)
    assert table["now"] == ["502 ms", "349"]
    assert table["with TD101's fix"] == ["96.5–162 ms", "67.0–112"]
    assert "storage twice as fast" in table


def test_only_what_was_asked_and_measured_is_told() -> None:
    assert rows(IO_BOUND) == {}
    assert rows(UNKNOWN, hourly_cost=2.5) == {}
    assert [name for name in rows(HEALTHY, hourly_cost=2.5) if "fix" in name] == [
        f"with {finding.code}'s fix" for finding in HEALTHY.findings if finding.speedup
    ]


@pytest.mark.parametrize("name", SAMPLES)
@pytest.mark.parametrize("width", [40, 80])
def test_no_line_is_wider_than_the_terminal(name: str, width: int) -> None:
    shown = render("terminal", SAMPLES[name], width=width, hourly_cost=12.5, all_findings=True)
    assert max(map(cell_len, shown.splitlines())) <= width


@pytest.mark.parametrize("command", [["report", "--format", "sarif"], ["analyze", "x", "--json"]])
def test_other_formats_do_not_tell_costs(command: list[str], tmp_path: Path) -> None:
    done = CliRunner().invoke(app, [*command, "--hourly-cost", "2.5"])
    assert done.exit_code != 0
    assert "--hourly-cost" in str(done.exception) + done.output
