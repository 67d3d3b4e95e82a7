"""The tables: what each shows of a run's evidence, and that nothing breaks their layout."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from rich.cells import cell_len

from tdiag.cli import app
from tdiag.evidence.store import Evidence
from tdiag.evidence.torch_ops import Calls, HostOps
from tdiag.report.page import Page
from tdiag.report.profilers import TABLES

from .building import (
    HOME,
    HOSTILE,
    PACKAGES,
    call,
    device_ops,
    draw,
    everything,
    host_ops,
    op,
    stack_line,
    stacks,
    traced,
)

ESCAPE = re.compile(r"\x1b\[[0-9;]*m|\x1b\]8;[^\x1b]*\x1b\\")


def drawn(name: str, evidence: Evidence, width: int = 80, *, color: bool = False,
          every_row: bool = False) -> str:  # fmt: skip
    return draw([name], evidence, Page(width, color, every_row, Path(HOME)))


def cells(text: str, row: str) -> list[str]:
    """The cells of the first line that begins with ``row``."""
    line = next(line for line in text.splitlines() if line.strip().startswith(row))
    return re.split(r"  +", line.strip())


@pytest.mark.parametrize("name", TABLES)
@pytest.mark.parametrize("width", [40, 80, 120])
@pytest.mark.parametrize("color", [False, True])
def test_hostile_names_neither_act_nor_widen_a_table(name: str, width: int, color: bool) -> None:
    shown = drawn(name, everything(HOSTILE), width, color=color)
    harmless = ESCAPE.sub("", shown)
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u200d\u202e]", harmless)
    for line in harmless.split("\n"):
        assert cell_len(line) <= width, line
    for link in re.findall(r"\x1b\]8;[^;]*;([^\x1b]*)\x1b", shown):
        assert re.fullmatch(r"(file:///[!-~]+)?", link)


@pytest.mark.parametrize("name", ["ops", "calls", "lines"])
def test_markup_stands_there_as_text(name: str) -> None:
    assert "[link=file:///x]line[/link]" in drawn(name, everything(HOSTILE), 500)


@pytest.mark.parametrize("name", TABLES)
def test_without_evidence_a_sentence_says_why_and_what_to_do(name: str) -> None:
    said = " ".join(drawn(name, Evidence()).split())
    assert re.match(r"No [\w ]+: not captured\. tdiag run ", said)


def test_the_reason_is_the_evidences_own() -> None:
    evidence = Evidence(missing={HostOps: "no trace was recorded: the run ended before it"})
    said = " ".join(drawn("ops", evidence).split())
    assert said.startswith("No host ops: no trace was recorded: the run ended before it. tdiag run")


def test_every_table_is_an_option_of_report(capsys: pytest.CaptureFixture[str]) -> None:
    app(["report", "--help"], standalone_mode=False)
    shown = capsys.readouterr().out
    assert [name for name in TABLES if f"--{name}" not in shown] == []


def test_several_tables_stand_below_each_other() -> None:
    page = Page(80, base_dir=Path(HOME))
    shown = draw(["lines", "ops"], everything(), page)
    assert shown.index("Training process") < shown.index("Ops, per step")


# --- ops ----------------------------------------------------------------------------------------


def test_an_op_has_its_own_time_and_share_its_total_and_its_device_time() -> None:
    shown = drawn("ops", everything())
    assert "2 traced steps, 20.0 ms each" in shown
    assert cells(shown, "aten::mm") == [
        "aten::mm", "12", "5.00 ms", "25%", "5.00 ms", "500 µs", "2.5%",
    ]  # fmt: skip
    assert "torch.profiler adds (cost to the steps it watched: +38%)" in " ".join(shown.split())


def test_ops_with_the_largest_own_or_device_time_come_first() -> None:
    ops = host_ops(op("a", 1, 3, 3), op("b", 1, 2, 2), op("c", 1, 1, 1))
    device = device_ops(("c", 2.5))
    shown = drawn("ops", Evidence().add(ops, traced(), device))
    assert re.findall(r"(?m)^  ([abc]) ", shown) == ["a", "c", "b"]


def test_without_a_device_no_column_is_about_one() -> None:
    shown = drawn("ops", Evidence().add(host_ops(op("a", 1, 3, 3)), traced()))
    assert "evice" not in shown
    assert cells(shown, "a ") == ["a", "1", "3.00 ms", "15%", "3.00 ms"]


def test_25_rows_are_shown_and_the_rest_counted_until_all_are_asked_for() -> None:
    evidence = Evidence().add(host_ops(*[op(f"op{i}", 1, 1, 1) for i in range(28)]), traced())
    shown = drawn("ops", evidence)
    assert "op24" in shown
    assert "op25" not in shown
    assert "… 3 more ops with --all" in shown
    every = drawn("ops", evidence, every_row=True)
    assert "op27" in every
    assert "--all" not in every


def test_a_long_name_is_cut_at_its_start_on_a_narrow_page_only() -> None:
    name = "autograd::engine::evaluate_function: ConvolutionBackward0"
    evidence = Evidence().add(host_ops(op(name, 1, 1, 1)), traced(), device_ops((name, 1)))
    assert name in drawn("ops", evidence, 120)
    narrow = drawn("ops", evidence, 80)
    assert name not in narrow
    assert re.search(r"(?m)^  ….*: ConvolutionBackward0  +1 ", narrow)


# --- calls --------------------------------------------------------------------------------------


def test_a_function_has_its_place_relative_to_the_base() -> None:
    shown = drawn("calls", everything("run"))
    assert cells(shown, "run") == ["run", "train.py:8", "3.5", "7.00 ms", "14.0 ms"]
    assert "4 steps in cProfile" in shown
    assert "slows down every call (cost to the steps it watched: +112%)" in " ".join(shown.split())
    colored = drawn("calls", everything("run"), color=True)
    assert f"{Path(HOME, 'train.py').as_uri()}\x1b\\" in colored


@pytest.mark.parametrize(
    ("function", "name"),
    [
        ("<method 'item' of 'torch._C.TensorBase' objects>", "TensorBase.item"),
        ("<built-in method torch._C._nn.linear>", "torch._C._nn.linear"),
        ("something new", "something new"),
    ],
)
def test_what_is_written_in_c_is_named_as_python_would(function: str, name: str) -> None:
    shown = drawn("calls", Evidence().add(Calls(steps=1, rows=(call("", 0, function),))))
    assert cells(shown, name)[:2] == [name, "built-in"]


@pytest.mark.parametrize(
    ("file", "shown_as"),
    [
        (PACKAGES + "torch/nn/modules/module.py", "torch/nn/modules/module.py"),
        (f"{HOME}/.venv{PACKAGES}torch/nn/functional.py", "torch/nn/functional.py"),
        ("/usr/lib/python3.11/pathlib.py", "pathlib.py"),
        ("/srv/shared/code/train.py", "/srv/shared/code/train.py"),
    ],
)
def test_a_librarys_file_is_named_from_its_package_on(file: str, shown_as: str) -> None:
    evidence = Evidence().add(Calls(steps=1, rows=(call(file, 17, "f"),)))
    assert cells(drawn("calls", evidence), "f ")[1] == f"{shown_as}:17"
    assert f"{Path(file).as_uri()}\x1b\\" in drawn("calls", evidence, color=True)


def test_short_names_leave_their_room_to_long_paths() -> None:
    """Of 80 cells the place has what function and numbers do not need: more than half."""
    file = f"{HOME}/{'deep/' * 20}train.py"
    shown = drawn("calls", Evidence().add(Calls(steps=1, rows=(call(file, 17, "f"),))))
    assert len(cells(shown, "f ")[1]) == 39


# --- lines --------------------------------------------------------------------------------------


def test_training_and_workers_are_apart_each_with_its_own_samples() -> None:
    shown = drawn("lines", everything("load"))
    training, workers = shown.split("DataLoader workers")
    assert training.splitlines()[1].endswith(" 812 samples")
    assert workers.splitlines()[0].endswith(" 31 samples")
    assert cells(training, "load.py:30") == [
        "load.py:30", "load (PIL/Image.py)", "backward", "60%",
    ]  # fmt: skip
    assert cells(workers, "data.py:12")[-1] == "100%"
    wide = drawn("lines", everything("load"), 120)
    assert cells(wide, "load.py:30")[:3] == ["load.py:30", "load", "load (PIL/Image.py)"]
    assert "py-spy (cost to the steps it watched: within noise)" in " ".join(shown.split())


def test_a_line_that_calls_nothing_is_where_the_time_goes_itself() -> None:
    mine, other = (
        stack_line(f"{HOME}/train.py", i, "forward", 0.2, leaf)
        for i, leaf in ((3, "forward (project/train.py)"), (4, "forward (modules/linear.py)"))
    )
    shown = drawn("lines", Evidence().add(stacks(mine, other)))
    assert cells(shown, "train.py:3")[1] == "the line itself"
    assert cells(shown, "train.py:4")[1] == "forward (modules/linear.py)"


def test_what_a_line_calls_is_cut_at_its_end_and_the_line_at_its_start() -> None:
    line = stack_line(f"{HOME}/{'deep/' * 20}train.py", 3, "f", 0.2, f"decode ({'x' * 90})")
    shown = drawn("lines", Evidence().add(stacks(line)))
    assert re.search(r"(?m)^  …\S+/train.py:3  decode \(x+…  backward", shown)


def test_that_no_worker_was_seen_is_said_and_why() -> None:
    line = stack_line(f"{HOME}/train.py", 3, "main", 0.2)
    assert "No DataLoader worker was seen" in drawn("lines", Evidence().add(stacks(line)))
    fallback = drawn("lines", Evidence().add(stacks(line, source="in-process")))
    assert "DataLoader workers ──" not in fallback
    assert "cannot see DataLoader workers" in fallback


def test_system_calls_show_their_failures_and_what_one_takes() -> None:
    text = drawn("syscalls", everything("openat"))
    assert cells(text, "openat") == ["openat", "7.5", "1", "2.00 ms", "267 µs"]
    assert "3 steps in strace" in text
    assert "tdiag run --syscalls" in drawn("syscalls", Evidence())
