"""The terminal report: what it shows, in what order, and that nothing breaks its layout.

The golden reports are rewritten by ``just docs`` (``TDIAG_WRITE_SNAPSHOTS=1``); read the diff.
"""

from __future__ import annotations

import os
import re
import runpy
from pathlib import Path

import msgspec
import pytest
from rich.cells import cell_len
from rich.text import Text

from tdiag.model.diagnosis import Component, Diagnosis, Measure, StepTime
from tdiag.model.notes import Captured, Note
from tdiag.rules.catalogue import all_rules

from . import product
from .building import HOME, MS, RUN_DIR, render
from .product import PRODUCT
from .samples import CPU_BOUND, HEALTHY, HOSTILE, IO_BOUND, SAMPLES, WORKERS

EDGES = ("crash", "hostile", "watched")
ROOT = Path(__file__).resolve().parents[2]
GOLDEN = Path(__file__).parent / "golden"
ESCAPE = re.compile(r"\x1b\[[0-9;]*m|\x1b\]8;[^\x1b]*\x1b\\")


def terminal(diagnosis: Diagnosis, width: int = 80, **options: bool) -> str:
    return render("terminal", diagnosis, width=width, base_dir=HOME, run_dir=RUN_DIR, **options)


@pytest.mark.parametrize("width", [80, 120])
@pytest.mark.parametrize("name", [*PRODUCT, *EDGES])
def test_the_report_is_the_golden_one(name: str, width: int) -> None:
    """The product's own reports of its rules' examples, and hand-made runs that went wrong."""
    golden = GOLDEN / f"{name}-{width}.txt"
    if name in PRODUCT:
        shown = render("terminal", PRODUCT[name], width=width, base_dir=product.HOME,
                       run_dir=product.RUN_DIR)  # fmt: skip
    else:
        shown = terminal(SAMPLES[name], width)
    if os.environ.get("TDIAG_WRITE_SNAPSHOTS"):
        golden.write_text(shown, encoding="utf-8")
    assert shown == golden.read_text(encoding="utf-8")


@pytest.mark.parametrize("name", sorted(set(SAMPLES) - {"hostile"}))
def test_hand_made_samples_name_rules_that_there_are(name: str) -> None:
    every = {rule.code: rule.name for rule in all_rules()}
    for found in SAMPLES[name].findings:
        assert every[found.code] == found.name
    for left in SAMPLES[name].abstained:
        assert every[left.code] == (left.name or every[left.code])


@pytest.mark.parametrize("width", [40, 60, 80, 100, 110, 120, 200])
@pytest.mark.parametrize("name", SAMPLES)
@pytest.mark.parametrize("color", [False, True])
def test_no_line_is_wider_than_the_terminal(name: str, width: int, color: bool) -> None:
    shown = terminal(SAMPLES[name], width, color=color, all_findings=True)
    for line in shown.split("\n"):
        assert cell_len(ESCAPE.sub("", line)) <= width, line


@pytest.mark.parametrize("name", SAMPLES)
def test_colour_changes_only_colour_links_and_the_swatches(name: str) -> None:
    plain, colored = terminal(SAMPLES[name]), terminal(SAMPLES[name], color=True)
    assert "\x1b" not in plain
    assert "\x1b[" in colored
    words = [re.findall(r"[^\s█▓▒░▚▞▖▝■]+", x) for x in (plain, ESCAPE.sub("", colored))]
    assert words[0] == words[1]


@pytest.mark.parametrize("color", [False, True])
def test_hostile_names_are_shown_and_not_obeyed(color: bool) -> None:
    shown = terminal(HOSTILE, color=color, all_findings=True)
    harmless = ESCAPE.sub("", shown)
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u200d\u202e\ud800-\udfff]", harmless)
    assert "[red]wipe\\x1b[2J" in harmless  # markup and escapes stand there as text
    assert "[link=file:///x]line[/link]" in harmless
    for link in re.findall(r"\x1b\]8;[^;]*;([^\x1b]*)\x1b", shown):
        assert re.fullmatch(r"(file:///[!-~]+)?", link)


def test_a_location_is_relative_to_the_base_and_links_to_the_file_in_colour() -> None:
    assert "loader-short-of-workers at train.py:41 (keeps results)\n" in terminal(CPU_BOUND)
    colored = terminal(CPU_BOUND, color=True)
    assert f"{(HOME / 'train.py').as_uri()}\x1b\\" in colored
    elsewhere = render("terminal", CPU_BOUND, base_dir=Path("/elsewhere"))
    assert f" at {HOME}/train.py:41" in elsewhere


def test_the_verdict_names_share_sentence_fix_place_and_gain_before_all_else() -> None:
    top = " ".join(terminal(CPU_BOUND).split("Step time")[0].replace("▌", "").split())
    assert "Preprocessing-bound: 62% of the step" in top
    assert "31.3 ms of each 50.2 ms step" in top
    assert "Best fix: DataLoader(..., num_workers=3) at train.py:41, predicted 1.6–2.4× fas" in top


def test_the_budget_shown_adds_up_to_the_step_shown() -> None:
    # Thirds of a step would each round down, and 99.9% would be shown.
    thirds = tuple(Component(x, 100 * MS // 3 + (x == "loss")) for x in ("forward", "backward"))
    parts = (*thirds, Component("loss", 100 * MS - sum(c.ns for c in thirds)))
    shown = terminal(msgspec.structs.replace(CPU_BOUND, budget=parts, findings=()))
    rows = re.findall(r"(?m)^  \S+  (?:forward|backward|loss) +([\d.]+) ms +([\d.]+)%", shown)
    assert len(rows) == 3
    assert round(sum(float(ms) for ms, _ in rows), 1) == 100.0
    assert round(sum(float(share) for _, share in rows), 1) == 100.0
    assert re.search(r"step +100\.0 ms +100\.0%", shown)


def test_the_bar_fills_the_width_whatever_the_parts() -> None:
    for count in (1, 2, 7, 40):
        parts = tuple(Component(f"part {i}", MS * (i + 1)) for i in range(count))
        shown = terminal(msgspec.structs.replace(CPU_BOUND, budget=parts, findings=()))
        bar = next(line for line in shown.splitlines() if line.startswith("  █"))
        assert cell_len(bar) == 79


def test_small_components_share_a_line_until_all_are_asked_for() -> None:
    assert "2 smaller" in terminal(CPU_BOUND)
    row = re.compile(r"prepare batch +0\.11 ms +0\.2%")
    assert not row.search(terminal(CPU_BOUND))
    assert row.search(terminal(CPU_BOUND, all_findings=True))


def test_five_findings_are_shown_and_the_rest_counted() -> None:
    many = msgspec.structs.replace(CPU_BOUND, findings=(WORKERS,) * 8)
    assert terminal(many).count("TD201 ") == 5
    assert "… 3 more findings with --all" in terminal(many)
    assert terminal(many, all_findings=True).count("TD201 ") == 8


def test_a_healthy_run_is_told_so_and_nothing_is_pushed() -> None:
    minor = msgspec.structs.replace(WORKERS, advisory=True)  # as diagnose() makes it
    shown = terminal(msgspec.structs.replace(HEALTHY, findings=(minor, *HEALTHY.findings)))
    assert "Compute-bound and healthy" in shown
    assert "Nothing needs changing." in shown
    assert "Best fix" not in shown
    assert "What to change" not in shown
    assert "little or nothing to gain" in shown and "TD201" in shown


def test_a_run_without_a_verdict_says_what_was_missing_and_what_to_do() -> None:
    shown = terminal(SAMPLES["crash"])
    assert "No verdict" in shown
    assert "0%" not in shown  # an absent share is not a zero share
    assert "Missing: py-spy, trace (the script ended first)" in shown
    assert "What to do: let the script run at least a dozen training steps" in shown
    assert "exited with code 1" in shown


def test_a_program_that_failed_gets_no_advice_and_unmade_checks_share_one_line() -> None:
    crash = SAMPLES["crash"]
    failed = msgspec.structs.replace(crash, environment=crash.environment | {"exit_code": 1})
    assert "What to do" not in terminal(failed)
    assert "None of the 3 rules could be checked: no clean step was measured." in terminal(failed)
    assert "Could not check" not in terminal(failed)
    assert "TD101 TD201 TD501" in terminal(failed, all_findings=True)


def test_low_confidence_is_said_with_its_reasons_and_shown_hollow() -> None:
    verdict = msgspec.structs.replace(CPU_BOUND.verdict, confidence=0.15)
    note = Note("crowded-machine", "other programs kept 60% of the machine's cores busy")
    assert CPU_BOUND.step is not None
    step = msgspec.structs.replace(CPU_BOUND.step, count=1)
    shown = terminal(
        msgspec.structs.replace(CPU_BOUND, verdict=verdict, notes=(note,), step=step), 120
    )
    assert "○ Preprocessing-bound" in shown and "low confidence (15%)" in shown
    assert "Not sure: other programs kept 60% of the machine's cores busy; only 1" in shown
    assert "Possible fix: " in shown and "Best fix" not in shown
    assert " 1 step\n" in shown


def test_the_command_to_see_it_again_names_the_run_unless_it_is_the_latest() -> None:
    assert "tdiag report .tdiag/runs/20261121-124500-train --all" in terminal(CPU_BOUND)
    latest = render("terminal", CPU_BOUND, base_dir=HOME, run_dir=RUN_DIR, latest=True)
    assert "again      tdiag report --all" in latest
    assert "again" not in render("terminal", CPU_BOUND, base_dir=HOME)


def test_a_setting_that_is_not_set_stands_in_the_column_of_the_numbers() -> None:
    measures = (Measure("fused", "None", "text", "probe"), Measure("tensors", 62, "count", "probe"))
    found = msgspec.structs.replace(WORKERS, evidence=measures * 4 + measures[:1])
    lines = terminal(msgspec.structs.replace(CPU_BOUND, findings=(found,)))
    rows = re.findall(r"(?m)^ +(?:fused|tensors) .*probe$", lines)
    assert len(rows) == 8 and len({row.index("probe") for row in rows}) == 1
    assert "not set" in rows[0] and "… 1 more number with --all" in lines


def test_rules_that_lacked_the_same_evidence_share_a_line() -> None:
    assert "no CUDA device in this run  TD301 TD302 TD303 TD401 TD601" in terminal(IO_BOUND)


def test_each_profilers_disturbance_and_each_failed_source_is_shown() -> None:
    failed = {
        "trace": Captured("captured"),
        "py-spy": Captured("failed", "ptrace refused, allow SYS_PTRACE"),
    }
    shown = terminal(msgspec.structs.replace(CPU_BOUND, capture=failed))
    assert re.search(r"failed +py-spy: ptrace refused, allow SYS_PTRACE", shown)
    assert "sample within noise, trace +38%, calls +112%, ops +840%" in shown


def test_the_process_environment_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    plain, colored = terminal(CPU_BOUND), terminal(CPU_BOUND, color=True)
    for name, value in {
        "NO_COLOR": "1",
        "FORCE_COLOR": "1",
        "TERM": "dumb",
        "COLUMNS": "33",
    }.items():
        monkeypatch.setenv(name, value)
        assert terminal(CPU_BOUND) == plain
        bare = Text.from_ansi(terminal(CPU_BOUND, color=True)).plain
        assert bare == Text.from_ansi(colored).plain
        assert "\x1b[" in terminal(CPU_BOUND, color=True)


@pytest.mark.parametrize("width", [80, 100, 120])
def test_many_small_components_never_cost_the_numbers(width: int) -> None:
    names = ("loss", "gc", "prepare", "data_wait_io", "other", "checkpoint", "h2d")
    small = tuple(Component(name, MS // 10) for name in names)
    large = (Component("forward", 68 * MS), Component("data_wait_cpu", 68 * MS))
    step = StepTime(sum(c.ns for c in large + small), 1, 1, 10)
    text = terminal(msgspec.structs.replace(HEALTHY, budget=large + small, step=step), width)
    assert re.search(r"forward +68\.0 ms +49\.\d%", text)
    assert re.search(r"data wait: CPU +68\.0 ms +49\.\d%", text)


def test_the_headline_never_answers_one_waste_with_the_fix_of_another() -> None:
    assert "Best fix" in terminal(CPU_BOUND)
    sync = msgspec.structs.replace(CPU_BOUND.verdict, cls="sync")
    shown = terminal(msgspec.structs.replace(CPU_BOUND, verdict=sync))
    assert "Best fix" not in shown
    assert WORKERS.code in shown  # it is still in the ranking


def test_the_reports_in_the_docs_are_the_products() -> None:
    """``just docs`` writes them."""
    script = runpy.run_path(str(ROOT / "scripts" / "generate_samples.py"))
    for name, text in script["pages"]().items():
        assert (ROOT / name).read_text(encoding="utf-8") == text
        assert text.count("<!-- sample: ") == text.count("<!-- end of sample -->") > 0


@pytest.mark.parametrize("width", [80, 120])
def test_a_line_of_code_is_not_folded_beside_the_evidence(width: int) -> None:
    line = "total = torch.stack(values).sum()  # values: tensors, no .item()"
    fix = msgspec.structs.replace(WORKERS.fix, code=line)
    found = msgspec.structs.replace(WORKERS, fix=fix)
    assert f"\n      {line}\n" in terminal(
        msgspec.structs.replace(CPU_BOUND, findings=(found,)), width
    )
