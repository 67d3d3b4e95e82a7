"""The system table: strips over the run, and the numbers beside them."""

from __future__ import annotations

import re

import numpy as np
import pytest

from tdiag.evidence.machine import Strip
from tdiag.evidence.store import Evidence
from tdiag.report.page import Page
from tdiag.report.terminal_strips import bars, means

from .building import draw, history


def row(strip: Strip, width: int = 80, moments: int = 5) -> tuple[str, list[str]]:
    """The strip as drawn, and what stands right of it."""
    shown = draw(["system"], Evidence().add(history(strip, moments=moments)), Page(width))
    line = next(line for line in shown.splitlines() if line.startswith(f"  {strip.name}  "))
    found = re.fullmatch(rf"  {strip.name}  ([▁-█ ]+?)  +(\S.*)", line)
    assert found, line
    return found[1], found[2].split()


def test_a_cell_is_the_mean_of_its_time_whatever_the_samples_spacing() -> None:
    """1 for a second, then 4 for three: the cells are two seconds each."""
    assert means((1, 4), (10, 11, 14), 2).tolist() == [2.5, 4.0]
    assert means((1, 4), (10, 11, 14), 1).tolist() == [3.25]


def test_more_cells_than_samples_repeat_them() -> None:
    assert means((1, 3), (0, 5, 10), 4).tolist() == [1, 1, 3, 3]


def test_what_was_not_measured_is_nobodys_mean() -> None:
    found = means((2, None, None), (0, 2, 4, 6), 3)
    assert found[0] == 2
    assert np.isnan(found[1:]).all()
    assert means((2, None, 8), (0, 1, 2, 3), 1).tolist() == [5]


def test_the_highest_bar_is_the_top_and_a_blank_is_unknown() -> None:
    assert bars(np.array([0, 0.1, 1, 1.99, 2, 3, np.nan]), 2) == "▁▁▅███ "


def test_cores_are_drawn_against_what_is_allowed() -> None:
    drawn, numbers = row(Strip(name="cores", unit="cores", values=(0, 0, 2, 2), limit=4))
    half = len(drawn) // 2
    assert set(drawn[:half]) == {"▁"}
    assert set(drawn[-half:]) == {"▅"}
    assert numbers == ["0.00", "1.00", "2.00", "4", "cores"]


@pytest.mark.parametrize(
    ("strip", "numbers"),
    [
        (
            Strip(name="disk read", unit="bytes_per_s", values=(0, 2**20, 3 * 2**20, None)),
            ["0.00", "1.33", "3.00", "MiB/s"],
        ),
        (
            Strip(name="memory", unit="bytes", values=(2**28,) * 4, limit=24 * 2**30),
            ["0.25", "0.25", "0.25", "24", "GiB"],
        ),
        (
            Strip(name="GPU 0 use", unit="frac", values=(0.5, 1, 0.5, 1), limit=1),
            ["50.0", "75.0", "100", "100", "%"],
        ),
        (
            Strip(name="disk read", unit="bytes_per_s", values=(0, 0, 0, 0)),
            ["0.00", "0.00", "0.00", "B/s"],
        ),
    ],
)
def test_the_numbers_of_a_row_share_one_unit(strip: Strip, numbers: list[str]) -> None:
    assert row(strip)[1] == numbers


def test_a_wide_page_has_longer_strips() -> None:
    strip = Strip(name="cores", unit="cores", values=(1,) * 4, limit=2)
    assert len(row(strip, 120)[0]) == len(row(strip, 80)[0]) + 40


def test_a_measure_that_the_system_does_not_give_says_so() -> None:
    strip = Strip(name="disk read", unit="bytes_per_s", values=(None,) * 4)
    shown = draw(["system"], Evidence().add(history(strip)), Page(80))
    assert re.search(r"disk read +– +– +– +not measured", shown)


def test_the_axis_ends_with_the_length_of_the_run() -> None:
    strip = Strip(name="cores", unit="cores", values=(1,) * 4, limit=2)
    shown = draw(["system"], Evidence().add(history(strip, no_gpu="NVML is missing")), Page(80))
    assert re.search(r"0 ─+ 4\.00 s  +min  +mean  +max +of\n", shown)
    assert "No GPU: NVML is missing." in " ".join(shown.split())
