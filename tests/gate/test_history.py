"""The history file, what is found in it, and what is shown of it."""

from __future__ import annotations

import json
import random
import statistics
from pathlib import Path

import msgspec
import pytest

from tdiag.errors import RunError
from tdiag.gate.history_document import document
from tdiag.gate.history_file import CheckRecord, append, read, record_of, series
from tdiag.gate.revision import Head, head
from tdiag.gate.shifts import FEWEST, shifts
from tdiag.report import render
from tdiag.report.page import Page
from tests.launch.harness import tdiag

from .building import commit, git, regressed, repository

DAY = 86_400


def record(number: int, step_ns: float = 10e6, **more: object) -> CheckRecord:
    told = {"unix": 1_700_000_000 + number * DAY, "commit": f"{number:010x}" * 4,
            "command": "train.py", "subject": f"change {number}", "kind": "baseline",
            "against": "b.json", "machine": "a CPU, 2 cores", "verdict": "pass",
            "low_ns": step_ns * 0.99,
            "high_ns": step_ns * 1.01, "ratio": 1.0, "baseline_ns": 10e6}  # fmt: skip
    return CheckRecord(step_ns=step_ns, **{**told, **more})  # type: ignore[arg-type]


def noise(count: int, seed: int, level: float = 10e6) -> list[float]:
    dice = random.Random(seed)
    return [level * (1 + dice.gauss(0, 0.01)) for _ in range(count)]


def test_a_lasting_change_is_marked_where_it_began() -> None:
    found = shifts([*noise(20, 1), *noise(15, 2, level=10.8e6)])
    assert [shift.index for shift in found] == [20]
    assert 0.07 < found[0].change < 0.09


def test_noise_and_lone_outliers_are_no_change() -> None:
    marked = [seed for seed in range(20) if shifts(noise(25, seed))]
    assert len(marked) <= 1  # 1 % are to be expected
    times = noise(25, 3)
    for at in (6, 12, 18, 24):
        times[at] *= 1.5
    assert shifts(times) == []


def test_few_checks_and_equal_ones_change_nothing() -> None:
    assert shifts([10e6] * 4 + [20e6] * (FEWEST - 5)) == []
    assert shifts([10e6] * 50) == []


def test_what_is_appended_is_read_by_time(tmp_path: Path) -> None:
    path = tmp_path / "new" / "h.jsonl"
    for number in (2, 1, 3):
        append(path, record(number))
    found, broken = read(path)
    assert found == [record(n) for n in (1, 2, 3)] and broken == 0
    assert all(line.startswith('{"tdiag_history":1,') for line in path.read_text().splitlines())


def test_a_crash_while_writing_costs_that_line_alone(tmp_path: Path) -> None:
    path = tmp_path / "h.jsonl"
    append(path, record(1))
    append(path, record(2))
    path.write_text(path.read_text()[:-30])
    append(path, record(3))
    assert read(path) == ([record(1), record(3)], 1)


@pytest.mark.parametrize(
    ("text", "message"),
    [("", "no check"), ("<<<<<<< HEAD\n", "no check"), ('{"tdiag_history": 2}', "newer tdiag")],
)
def test_what_cannot_be_read_is_told(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "h.jsonl"
    path.write_text(text)
    with pytest.raises(RunError, match=message):
        read(path)
    with pytest.raises(RunError, match="cannot read"):
        read(tmp_path / "none.jsonl")


def test_the_step_of_a_baseline_is_told_in_its_terms() -> None:
    """What both sides took now holds the machine's drift; the file's step and the ratio do not."""
    outcome, at = regressed(), Head("a" * 40, "slower", ("train.py",))
    stored, direct = record_of(outcome, "baseline", at), record_of(outcome, "revision", at)
    assert (stored.step_ns, stored.baseline_ns) == pytest.approx((10.0e6 * 1.082, 10.0e6))
    assert (stored.low_ns, stored.high_ns) == pytest.approx((10.0e6 * 1.061, 10.0e6 * 1.104))
    assert (direct.step_ns, direct.low_ns, direct.baseline_ns) == (11.0e6, None, None)
    assert stored.label == "aaaaaaaaaa+" and stored.verdict == "regressed"


def test_what_does_not_compare_stays_apart() -> None:
    records = [record(1), record(2, machine="another"), record(3, kind="revision"),
               record(4), record(5, command="other.py"),
               msgspec.structs.replace(record(6), step_ns=None)]  # fmt: skip
    found = series(records, last=10)
    assert [[r.unix for r in s.records] for s in found] == [
        [records[i].unix for i in group] for group in ([4], [0, 3], [2], [1])
    ]
    assert [len(s.records) for s in series(records, last=1)] == [1, 1, 1, 1]


def test_the_head_is_dirty_only_with_what_is_not_the_history(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    repo = repository(tmp_path / "repo", train_py="1\n", h="\n")
    monkeypatch.chdir(repo)
    (repo / "h").write_text("appended\n")
    found = head(Path("h"))
    assert found == Head(git(repo, "rev-parse", "HEAD").strip(), "a commit")
    (repo / "train.py").write_text("2\n")
    assert head(Path("h")).uncommitted == ("train.py",)
    assert head(tmp_path / "elsewhere").uncommitted == ("h", "train.py")
    commit(repo, train_py="3\n")
    assert not head(Path("h")).uncommitted
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert head(Path("h")) == Head()


HOSTILE = "</script><b>\x1b[31m fix | the _loader_ " + "x" * 200


def slower() -> list[CheckRecord]:
    times = [*noise(12, 1), *noise(8, 2, level=10.8e6)]
    records = [record(i, ns) for i, ns in enumerate(times)]
    records[12] = record(12, times[12], subject=HOSTILE, verdict="regressed", baseline_ns=11e6)
    return records


@pytest.mark.parametrize("width", [60, 80, 120])
def test_the_terminal_shows_each_check_and_the_change(width: int) -> None:
    text = render("terminal", document(series(slower(), 100)), Page(width=width))
    lines = text.splitlines()
    assert max(map(len, lines)) <= width and "\x1b" not in text
    assert "20 checks, 1 lasting change" in text and text.count("●") == 20
    said = " ".join(" ".join(lines).split())
    assert "% from 000000000c on, " in said
    assert "the baseline was rewritten here" in said
    marks = [line.index("●") for line in lines if "●" in line]
    assert statistics.median(marks[:12]) < statistics.median(marks[12:])


def test_an_interval_beyond_the_scale_says_so() -> None:
    records = [record(i, ns) for i, ns in enumerate(noise(5, 1))]
    records.append(record(5, low_ns=5e6, high_ns=15e6))
    lines = render("terminal", document(series(records, 100)), Page(width=80)).splitlines()
    wide = [line for line in lines if "‹" in line or "›" in line]
    assert len(wide) == 1 and "000000005" in wide[0]
    assert wide[0].index("‹") < wide[0].index("●") < wide[0].index("›")


def test_the_page_draws_what_the_json_says(tmp_path: Path) -> None:
    found = series(slower(), 100)
    told = json.loads(render("json", document(found), Page()))["series"][0]
    assert [c["index"] for c in told["changes"]] == [12] and len(told["records"]) == 20
    page = render("html", document(found), Page())
    assert "<b>" not in page and "\x1b" not in page
    assert "&lt;/script&gt;" in page and "% from 000000000c on, " in page
    assert page.count("<tr>") == 21 and "http://" not in page.split("<script")[0]
    assert "No check in this file has a step time" in render("html", document([]), Page())


def test_the_command(tmp_path: Path) -> None:
    nothing = tdiag("history", cwd=tmp_path)
    assert nothing.returncode == 2 and "cannot read tdiag-history.jsonl" in nothing.stderr
    for one in slower():
        append(tmp_path / "tdiag-history.jsonl", one)
    with (tmp_path / "tdiag-history.jsonl").open("a") as file:
        file.write(">>>>>>> theirs\n")
    shown = tdiag("history", cwd=tmp_path)
    assert shown.returncode == 0
    assert shown.stdout.count("●") == 20 and "skipped 1 line" in shown.stderr
    assert tdiag("history", "--html", "-o", "h.html", "--last", "5", cwd=tmp_path).returncode == 0
    assert (tmp_path / "h.html").read_text().count("<tr>") == 6
    assert tdiag("history", "--format", "pdf", cwd=tmp_path).returncode == 2
