"""The side-by-side view of two traces: it fits, it obeys nobody's names, and it says the units."""

from __future__ import annotations

import pytest
from rich.cells import cell_len

from tdiag.model.comparison import ChangeTable, Comparison, Difference
from tdiag.report import render
from tdiag.report.of_comparison import document
from tdiag.report.page import Page
from tdiag.report.text import clip_middle

from .special_samples import HOSTILE_NAME

MS = 1e6
LONG = (
    "void at::native::vectorized_elementwise_kernel<4, at::native::(anonymous namespace)::"
    "launch_clamp_scalar(at::TensorIteratorBase&)::{lambda()#1}, std::array<char*, 2ul> >(int, A2)"
)


def comparison(*rows: Difference, title: str = "Kernels and copies", why: str = "") -> Comparison:
    return Comparison(
        verdict_before="input",
        verdict_after="compute",
        step=Difference("step", "ns", 4 * MS, 1.5 * MS),
        tables=(ChangeTable(title=title, rows=rows, why=why),),
        notes_before=(HOSTILE_NAME,),
    )


def lines(found: Comparison, width: int = 80, all_findings: bool = False) -> list[str]:
    return render("terminal", document(found), Page(width, all_findings=all_findings)).splitlines()


@pytest.mark.parametrize("width", [40, 60, 80, 120])
@pytest.mark.parametrize("name", [LONG, HOSTILE_NAME, "漢字" * 60])
def test_every_line_fits_and_is_inert(name: str, width: int) -> None:
    rows = Difference(name, "ns", 123 * MS, 0.0), Difference(name, "ns", 1 * MS, 0.5 * MS, "after")
    text = lines(comparison(*rows), width) + lines(comparison(why=name), width)
    for line in text:
        assert cell_len(line) <= width, line
        assert line.isprintable()


def test_long_names_lose_their_middle_and_what_all_share() -> None:
    shown = next(x for x in lines(comparison(Difference(LONG, "ns", 0.0, 1 * MS))) if "…" in x)
    assert shown.startswith("  vectorized_elementwise")
    assert "2ul> >  " in shown
    assert "(int, A2)" not in shown
    assert "at::" not in shown
    assert shown.split()[-4:] == ["0.000", "1.000", "+1.000", "new"]


@pytest.mark.parametrize(
    "name",
    ["Memcpy HtoD (Pageable -> Device) of a very long name that has no arguments", "ab_" * 40],
)
def test_other_names_are_only_cut(name: str) -> None:
    shown = next(x for x in lines(comparison(Difference(name, "ns", MS, 2 * MS))) if "…" in x)
    head, tail = shown.split("  1.000")[0].strip().split("…")
    assert name.startswith(head)
    assert name.endswith(tail)
    assert len(head) > len(tail) > 10


@pytest.mark.parametrize("width", [1, 2, 9, 10, 25])
def test_both_ends_are_kept(width: int) -> None:
    cut = clip_middle("abcdefghijklmnopqrstuvwxyz", width)
    assert cell_len(cut) == width
    assert "…" in cut
    if width > 5:
        assert (cut[0], cut[-1]) == ("a", "z")


@pytest.mark.parametrize(
    ("row", "cells"),
    [
        (Difference("k", "ns", 2 * MS, 1 * MS), ["2.000", "1.000", "-1.000", "-50%"]),
        (Difference("k", "ns", 2 * MS, 0.0), ["2.000", "0.000", "-2.000", "gone"]),
        (
            Difference("k", "ns", 2 * MS, 0.2499 * MS, "after"),
            ["2.000", "≤0.250", "-1.750", "at", "least"],
        ),
        (Difference("k", "count", 5, 6650), ["5", "6,650", "+6,645", "1,330×"]),
        (
            Difference("k", "bytes", 1024, 3072),
            ["1.00", "KiB", "3.00", "KiB", "+2.00", "KiB", "+200%"],
        ),
    ],
)
def test_rows(row: Difference, cells: list[str]) -> None:
    shown = next(x for x in lines(comparison(row)) if x.startswith("  k "))
    assert shown.split() == ["k", *cells]


def test_only_the_budget_is_put_into_words() -> None:
    row = Difference("data_wait", "ns", 2 * MS, 1 * MS)
    assert any(x.startswith("  data wait ") for x in lines(comparison(row, title="Budget")))
    assert any(x.startswith("  data_wait ") for x in lines(comparison(row)))


def test_the_top_rows_come_first_and_the_rest_on_request() -> None:
    rows = [Difference(f"kernel{i}", "ns", 0.0, (20 - i) * MS) for i in range(12)]
    shown = "\n".join(lines(comparison(*rows)))
    assert "kernel7" in shown
    assert "kernel8" not in shown
    assert "4 more changes with --all" in shown
    assert "kernel11" in "\n".join(lines(comparison(*rows), all_findings=True))


def test_alike_and_not_compared_are_told_apart() -> None:
    assert any("No noticeable difference: kernels and copies" in x for x in lines(comparison()))
    why = "now: no device activity was captured"
    lacking = " ".join(x.strip() for x in lines(comparison(why=why)))
    assert "No noticeable difference" not in lacking
    assert f"Not compared ({why}): kernels and copies" in lacking
