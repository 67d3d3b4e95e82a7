"""The formats that other tools read: well-formed for them, whatever the run named its things."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import jsonschema
import msgspec
import pytest
from markdown_it import MarkdownIt

from tdiag import report
from tdiag.gate import check_document as checks
from tdiag.gate import history_document
from tdiag.gate.history_file import series
from tdiag.model.diagnosis import Diagnosis
from tdiag.report.document import Document
from tdiag.report.page import Page
from tests.gate.building import regressed
from tests.gate.test_history import slower

from .building import HOME, render
from .samples import CPU_BOUND, GPU_H2D, HEALTHY, HOSTILE, SAMPLES, UNKNOWN


def shown(format: str, diagnosis: Diagnosis) -> str:
    return render(format, diagnosis, base_dir=HOME)


def tokens(diagnosis: Diagnosis) -> list[Any]:
    parsed = MarkdownIt("commonmark").enable("table").parse(shown("markdown", diagnosis))
    return [t for token in parsed for t in (token, *(token.children or ()))]


def test_markdown_puts_the_verdict_and_the_best_fix_before_the_table() -> None:
    text = shown("markdown", CPU_BOUND)
    top = text.split("| component |")[0]
    assert top.startswith("### Preprocessing-bound: 62% of the step\n")
    assert "**Best fix**: DataLoader(..., num\\_workers=3) at `train.py:41`, predicted 1.6" in top
    assert "at `train.py:41`" in text
    assert "| data wait: CPU | 31.3 ms | 62% | loader busy preprocessing |" in text


def test_markdown_keeps_code_as_code_and_folds_the_evidence() -> None:
    inline = [t.content for t in tokens(CPU_BOUND) if t.type == "code_inline"]
    assert inline[:2] == ["__getitem__", "train.py:41"]
    folded = [t.content for t in tokens(CPU_BOUND) if t.type == "html_block"]
    assert sum("<summary>Evidence</summary>" in html for html in folded) == 2


def test_hostile_names_add_no_markup_to_the_markdown() -> None:
    found = tokens(HOSTILE)
    html = {t.content.strip() for t in found if t.type in ("html_block", "html_inline")}
    folded = r"Evidence|Could not check \(\d+ rules?\)|How it was measured"
    allowed = rf"</details>|<details><summary>({folded})</summary>"
    assert all(re.fullmatch(allowed, content) for content in html)
    assert not {t.type for t in found} & {"link_open", "image", "fence", "hr", "em_open"}


@pytest.mark.parametrize(
    "name",
    ["<script>x</script>", "![a](b)", "| a | b |", "# title", "- item", "1. one", "@ada $x$"],
)
def test_markdown_shows_a_name_that_is_markup_as_it_is_written(name: str) -> None:
    verdict = msgspec.structs.replace(UNKNOWN.verdict, summary=name)
    found = tokens(msgspec.structs.replace(UNKNOWN, verdict=verdict))
    paragraph = next(i for i, t in enumerate(found) if t.type == "paragraph_open")
    text = "".join(t.content for t in found[paragraph + 1].children)
    assert text == name.replace("@", "@\u200b")
    assert {t.type for t in found[paragraph + 1].children} <= {"text", "text_special"}


@pytest.mark.parametrize("name", SAMPLES)
def test_sarif_points_each_result_at_its_rule_and_line(name: str) -> None:
    log = json.loads(shown("sarif", SAMPLES[name]))
    assert log["version"] == "2.1.0"
    (run,) = log["runs"]
    rules = run["tool"]["driver"]["rules"]
    assert len({rule["id"] for rule in rules}) == len(rules)
    assert len(run["results"]) == len(SAMPLES[name].findings)
    for result, finding in zip(run["results"], SAMPLES[name].findings, strict=True):
        assert rules[result["ruleIndex"]]["id"] == result["ruleId"] == finding.code
        assert result["level"] == ("note" if finding.advisory else "warning")
        assert result["message"]["text"]
        assert 0 <= result["rank"] <= 100
        if finding.location:
            physical = result["locations"][0]["physicalLocation"]
            assert physical["region"]["startLine"] == finding.location.line
            assert re.fullmatch(r"[!-~]+", physical["artifactLocation"]["uri"])


def test_sarif_paths_are_relative_to_the_repository_or_absolute_uris() -> None:
    def uri(base: Path) -> dict[str, str]:
        log = json.loads(render("sarif", CPU_BOUND, base_dir=base))
        location = log["runs"][0]["results"][0]["locations"][0]
        artifact: dict[str, str] = location["physicalLocation"]["artifactLocation"]
        return artifact

    assert uri(HOME) == {"uri": "train.py", "uriBaseId": "%SRCROOT%"}
    assert uri(Path("/elsewhere")) == {"uri": "file:///home/ada/project/train.py"}


@pytest.mark.skipif("TDIAG_SARIF_SCHEMA" not in os.environ, reason="path of OASIS's schema not set")
def test_sarif_follows_the_official_schema() -> None:
    schema = json.loads(Path(os.environ["TDIAG_SARIF_SCHEMA"]).read_text())
    for diagnosis in SAMPLES.values():
        jsonschema.validate(json.loads(shown("sarif", diagnosis)), schema)


@pytest.mark.parametrize("name", SAMPLES)
def test_junit_counts_what_it_holds(name: str) -> None:
    (suite,) = ET.fromstring(shown("junit", SAMPLES[name]))
    diagnosis = SAMPLES[name]
    assert int(suite.get("tests", "")) == len(suite.findall("testcase"))
    assert int(suite.get("tests", "")) == 1 + len(diagnosis.findings) + len(diagnosis.abstained)
    assert int(suite.get("skipped", "")) == len(suite.findall(".//skipped"))
    assert int(suite.get("failures", "")) == len(suite.findall(".//failure"))


def test_junit_fails_for_a_measured_cost_and_not_for_a_healthy_run() -> None:
    failures = ET.fromstring(shown("junit", CPU_BOUND)).findall(".//failure")
    assert [str(f.text).split("\n")[0] for f in failures] == ["train.py:41", "data/images.py:23"]
    assert "Saves 18.8–29.3 ms a step" in str(failures[0].text)
    assert not ET.fromstring(shown("junit", HEALTHY)).findall(".//failure")


def test_junit_skips_what_could_not_be_checked_and_says_why() -> None:
    skipped = ET.fromstring(shown("junit", GPU_H2D)).findall(".//skipped")
    assert [s.get("message") for s in skipped] == ["only one rank ran"]


def annotations(diagnosis: Diagnosis) -> list[tuple[str, dict[str, str], str]]:
    """Parsed as GitHub's runner does: split at ``::``, then properties, then unescape."""

    def plain(text: str) -> str:
        for escape, char in {"%0A": "\n", "%0D": "\r", "%3A": ":", "%2C": ",", "%25": "%"}.items():
            text = text.replace(escape, char)
        return text

    parsed = []
    for line in shown("github", diagnosis).splitlines():
        command, _, message = line.removeprefix("::").partition("::")
        level, _, rest = command.partition(" ")
        properties = dict(p.split("=", 1) for p in rest.split(","))
        parsed.append((level, {k: plain(v) for k, v in properties.items()}, plain(message)))
    return parsed


def test_github_annotates_the_users_own_lines() -> None:
    verdict, first, _, advisory = annotations(CPU_BOUND)
    assert verdict[:2] == ("notice", {"title": "tdiag: Preprocessing-bound: 62% of the step"})
    title = "TD201 loader-short-of-workers: DataLoader(..., num_workers=3) (1.6–2.4× faster)"
    assert first[:2] == ("warning", {"file": "train.py", "line": "41", "title": title})
    assert first[2].split("\n")[1] == "Fix: DataLoader(..., num_workers=3)"
    assert advisory[0] == "notice"


def test_hostile_names_cannot_end_a_command_or_add_a_property() -> None:
    found = annotations(HOSTILE)
    assert len(found) == 1 + len(HOSTILE.findings)
    assert {frozenset(p) for _, p, _ in found[1:]} == {frozenset({"file", "line", "title"})}


@pytest.mark.parametrize("format", ["markdown", "sarif", "junit", "github"])
@pytest.mark.parametrize("name", SAMPLES)
def test_every_format_is_one_clean_text(format: str, name: str) -> None:
    text = shown(format, SAMPLES[name])
    assert text.endswith("\n") and not text.endswith("\n\n")
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e\ud800-\udfff]", text)


def test_a_format_is_one_function_and_one_registration(monkeypatch: pytest.MonkeyPatch) -> None:
    """It renders what a diagnosis, a check and a history say, without a word about any of them."""

    def csv(document: Document, page: Page) -> str:
        head = [document.headline.brief] if document.headline else []
        return "\n".join([*head, *(f"{x.level},{x.title}" for x in document.annotations)]) + "\n"

    monkeypatch.setitem(report.FORMATS, "csv", csv)
    assert "warning,DataLoader(..., num_workers=3) (1.6–2.4× faster)" in shown("csv", CPU_BOUND)
    checked = report.render("csv", checks.document(regressed()), Page())
    assert "error,.item() per step: 0 → 4,096" in checked
    assert "warning,+7.8% from" in report.render(
        "csv", history_document.document(series(slower(), 100))
    )


@pytest.mark.parametrize("format", ["terminal", "markdown", "html", "sarif", "junit", "github"])
def test_lines_to_paste_are_shown_as_lines_in_every_format(format: str) -> None:
    first = CPU_BOUND.findings[0]
    fix = msgspec.structs.replace(
        first.fix, action="Load in 3 workers", code="if a < b:\n    loader = DataLoader(x)"
    )
    found = msgspec.structs.replace(first, fix=fix)
    text = shown(format, msgspec.structs.replace(CPU_BOUND, findings=(found,)))
    assert "Load in 3 workers" in text
    lines = {
        "html": "if a &lt; b:\n    loader = DataLoader(x)</pre>",
        "markdown": "```python\nif a < b:\n    loader = DataLoader(x)\n```",
        "sarif": "if a < b:\\n    loader = DataLoader(x)\\n",
        "junit": "if a &lt; b:\n    loader = DataLoader(x)\n",
        "github": "if a < b:%0A    loader = DataLoader(x)%0A",
        "terminal": "      if a < b:\n          loader = DataLoader(x)\n",
    }
    assert lines[format] in text
