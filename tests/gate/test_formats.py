"""Every format of an outcome: valid, harmless, complete."""

from __future__ import annotations

import json
from xml.etree import ElementTree as ET

import msgspec
import pytest
from rich.cells import cell_len

from tdiag import report
from tdiag.errors import UsageError
from tdiag.gate.check_document import document
from tdiag.gate.judge import judge
from tdiag.gate.outcome import Outcome
from tdiag.report import FORMATS
from tdiag.report.page import Page

from .building import ROOT, case, measured, regressed

PAGE = Page(base_dir=ROOT)


def render(format: str, outcome: Outcome, page: Page) -> str:
    return report.render(format, document(outcome), page)


@pytest.mark.parametrize("name", FORMATS)
def test_no_name_of_the_users_controls_the_reader(name: str) -> None:
    text = render(name, regressed(), PAGE)
    assert text.endswith("\n") and "\x1b" not in text
    assert "8.2%" in text if name != "json" else '"ratio": 1.082' in text


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("ratio", [0.8, 1.0, 1.055])
def test_every_verdict_has_every_format(name: str, ratio: float) -> None:
    assert render(name, judge(case(measured(ratio))), PAGE)
    assert render(name, judge(case(None)), PAGE)


@pytest.mark.parametrize("width", [40, 80, 120])
def test_the_terminal_keeps_its_width(width: int) -> None:
    for line in render("terminal", regressed(), Page(width, base_dir=ROOT)).splitlines():
        assert cell_len(line) <= width


def test_the_terminal_shows_all_that_changed() -> None:
    text = render("terminal", regressed(), Page(100, base_dir=ROOT))
    for shown in (
        "Regressed", "also loss.py:42 makes 4,096 more .item() calls a step (0 → 4,096)",
        "in the diff",
        "[+6.1%, +10.4%]", "TD501", "files that differ: loss.py", "baseline is of torch 2.1",
        "5 groups of fresh processes, 200 turns a side",
    ):  # fmt: skip
        assert shown in text


def test_inconclusive_says_what_would_settle_it() -> None:
    text = render("terminal", judge(case(measured(1.04, 0.02))), Page(100))
    assert "more groups of fresh processes would decide it" in text
    never = render("terminal", judge(case(measured(1.05, 0.02))), Page(100))
    assert "choose another --max-regression" in never


def test_an_improvement_asks_to_keep_it() -> None:
    assert "--update" in render("terminal", judge(case(measured(0.8))), Page(100))


def test_json_is_the_model_and_the_exit_code() -> None:
    found = json.loads(render("json", regressed(), PAGE))
    assert found["exit_code"] == 1 and found["schema_version"] == 1
    assert msgspec.convert(found, Outcome).verdict == "regressed"


def test_junit_fails_for_a_regression_and_skips_what_is_open() -> None:
    suite = ET.fromstring(render("junit", regressed(), PAGE))[0]
    failed = [x.get("name") for x in suite if x.find("failure") is not None]
    assert failed == ["verdict", ".item() per step", "TD501 a-pattern"]
    assert (suite.get("failures"), suite.get("skipped")) == ("3", "0")
    open_case = ET.fromstring(render("junit", judge(case(measured(1.04, 0.02))), PAGE))[0]
    assert (open_case.get("failures"), open_case.get("skipped")) == ("0", "1")
    assert len(suite.findall("testcase")) == int(suite.get("tests") or 0)


def test_sarif_points_into_the_repository() -> None:
    run = json.loads(render("sarif", regressed(), PAGE))["runs"][0]
    assert [r["ruleId"] for r in run["results"]] == ["step-time", "work-counter", "new-finding"]
    place = run["results"][2]["locations"][0]["physicalLocation"]
    assert place["artifactLocation"] == {"uri": "loss.py", "uriBaseId": "%SRCROOT%"}
    assert json.loads(render("sarif", judge(case(measured(1.0))), PAGE))["runs"][0]["results"] == []


def test_annotations_stand_at_the_line_and_cannot_be_broken_out_of() -> None:
    head, counter, found = render("github", regressed(), PAGE).splitlines()
    assert head.startswith("::error title=tdiag check%3A Regressed::")
    assert counter.startswith("::error file=lo%2Css%3A%25") and ",line=42," in counter
    assert found.startswith("::warning file=loss.py,line=42,title=TD501")


def test_markdown_mentions_nobody() -> None:
    text = render("markdown", regressed(), PAGE)
    assert text.startswith("### ❌ tdiag check: Regressed")
    assert "@here" not in text and "<b>" not in text


def test_there_is_no_other_format() -> None:
    with pytest.raises(UsageError, match="no report format"):
        render("pdf", regressed(), PAGE)


def test_the_page_shows_what_was_newly_found_and_no_search_without_a_table_to_search() -> None:
    page = render("html", regressed(), PAGE)
    new = page.split('id="new-h"')[1]
    assert "Use one call" in new and "a-pattern" in new
    assert "<label>Search" not in page


def test_the_lines_of_a_counter_keep_their_width_on_a_wide_terminal() -> None:
    text = render("terminal", regressed(), Page(120, base_dir=ROOT))
    assert "total += x.item()  # | <b> @here" in text
