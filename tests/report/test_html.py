"""The page as it leaves tdiag: complete without a script, small, and nobody's markup in it."""

from __future__ import annotations

import base64
import hashlib
import json
import random
import re
import string
import zlib
from html.parser import HTMLParser
from typing import Any

import msgspec
import pytest

from tdiag.evidence.device import DevicePart, DeviceParts
from tdiag.evidence.from_trace.median_step import MOST_EVENTS
from tdiag.evidence.sampled import CallFrame, CallTrees
from tdiag.evidence.steps import EventLane, StepEvent, StepEvents
from tdiag.evidence.torch_ops import Calls, HostOp, HostOps
from tdiag.model.diagnosis import Diagnosis
from tdiag.model.notes import Captured, Note
from tdiag.model.place import Place
from tdiag.report.html import fragment as notebook
from tdiag.report.html.charts.step_times import MOST_POINTS, chart
from tdiag.report.html.parts import rgb
from tdiag.report.of_diagnosis import document
from tdiag.report.text import inert
from tdiag.report.words import component
from tests.tables.building import call

from .building import HOME, RUN_DIR, render
from .detailing import OUTLIER, STEPS, details, ranked, steps, with_source
from .samples import CPU_BOUND, HOSTILE, SAMPLES, UNKNOWN

MOST_BYTES = 3_000_000
ACTIVE = "</script><script>alert(1)</script><img src=x onerror=alert(2)>\"'><a href=//evil>{{7*7}}"


class Parsed(HTMLParser):
    """``tags``: (name, attributes) in order; ``text``: of the body, scripts left out."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self.texts: list[str] = []
        self._in = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._in = tag
        if tag == "script":
            self.scripts.append("")

    def handle_endtag(self, tag: str) -> None:
        self._in = ""

    def handle_data(self, data: str) -> None:
        if self._in == "script":
            self.scripts[-1] += data
        elif self._in != "style":
            self.texts.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.texts).split())


def page(diagnosis: Diagnosis, name: str = "plain", **more: Any) -> str:
    return render("html", ranked(diagnosis, name), base_dir=HOME, run_dir=RUN_DIR,
                  **{"evidence": details(name), **more})  # fmt: skip


def figures(text: str) -> dict[str, Any]:
    found = Parsed(text)
    index = [a.get("id") for t, a in found.tags if t == "script"].index("figures")
    decoded: dict[str, Any] = json.loads(unpacked(found.scripts[index]))
    return decoded


def unpacked(script: str) -> bytes:
    return zlib.decompress(base64.b64decode(script))


@pytest.mark.parametrize("name", sorted(SAMPLES))
def test_the_verdict_the_findings_and_the_budget_read_without_a_script(name: str) -> None:
    diagnosis = SAMPLES[name]
    text = Parsed(render("html", diagnosis, base_dir=HOME)).text
    for finding in diagnosis.findings:
        assert finding.code in text
        for measure in finding.evidence:
            assert inert(measure.source)[:20] in text
    for part in diagnosis.budget:
        assert inert(component(part.component).label)[:20] in text
    for rule in diagnosis.abstained:
        assert inert(rule.code)[:10] in text


def test_the_first_screen_comes_before_all_else() -> None:
    text = Parsed(page(CPU_BOUND)).text
    order = ["Preprocessing-bound: 62% of the step", "Best fix:", "What to change", "TD201",
             "Step time", "Ranks", "Step times over the run", "One median step",
             "The machine over the run", "Flame graphs", "What the profilers saw",
             "Could not check", "How it was measured"]  # fmt: skip
    places = [text.index(words, text.index("Skip to the report")) for words in order[:1]]
    body = text[places[0] :]
    assert [body.index(words) for words in order] == sorted(body.index(words) for words in order)


def test_the_page_is_one_small_file_that_asks_nothing_of_the_network() -> None:
    text = page(CPU_BOUND)
    assert len(text.encode()) < MOST_BYTES
    loads = {"src", "srcset", "href", "data", "action", "poster", "formaction", "background"}
    linked = [
        value for _, attributes in Parsed(text).tags
        for key, value in attributes.items() if key in loads
    ]  # fmt: skip
    assert linked and all(value and value[0] in "#d" for value in linked)
    assert [v for v in linked if v and v.startswith("d")] == ["data:,"]
    styles = re.findall(r"<style>.*?</style>", text, re.DOTALL)
    assert styles and not any(re.search(r"url\(|@import", style) for style in styles)


def test_the_page_of_a_run_with_very_much_of_everything_stays_small() -> None:
    """As many events, frames and rows as the evidence holds at most, each with a long name."""
    numbers = random.Random(0)

    def name() -> str:
        return "".join(numbers.choices(string.ascii_letters, k=300))

    much = details()
    step, host = much.get(StepEvents), much.get(HostOps)
    assert step and host
    events = tuple(
        StepEvent(name=name(), begin_ns=i, end_ns=i + 1) for i in range(MOST_EVENTS // 10)
    )
    lanes = tuple(EventLane(name=f"l{n}", role="host", events=events) for n in range(10))
    frames = tuple(
        CallFrame(name=name(), file=f"/u/{name()}.py", line=i, parent=max(-1, i - 50), frac=0.9,
              user=True) for i in range(3_000)
    )  # fmt: skip
    kernels = tuple(DevicePart(name=name(), count=1, device_ns=9.9) for _ in range(1_000))
    ops = tuple(HostOp(name=name(), count=1, self_ns=1.5, total_ns=2.5) for _ in range(1_000))
    rows = tuple(call(f"/u/{name()}.py", 1, name()) for _ in range(1_000))
    much.add(
        msgspec.structs.replace(step, lanes=lanes),
        CallTrees(training=frames, workers=frames),
        DeviceParts(kernels=kernels, ops=kernels, modules=kernels, functions=kernels),
        msgspec.structs.replace(host, ops=ops),
        Calls(steps=1, rows=rows),
    )
    assert len(page(CPU_BOUND, evidence=much).encode()) < MOST_BYTES


def test_only_its_own_scripts_may_run_by_digest() -> None:
    found = Parsed(page(CPU_BOUND))
    policy = next(
        a["content"] for t, a in found.tags if a.get("http-equiv") == "Content-Security-Policy"
    )
    assert policy is not None and policy.startswith("default-src 'none'; script-src 'sha256-")
    assert "unsafe" not in policy.partition("script-src")[2].partition(";")[0]
    kinds = [attributes.get("type") for tag, attributes in found.tags if tag == "script"]
    assert kinds == ["application/octet-stream", "application/octet-stream", None]
    plotly = unpacked(found.scripts[1])
    assert b"plotly.js" in plotly[:200]
    for script in (plotly, found.scripts[2].encode()):
        digest = base64.b64encode(hashlib.sha256(script).digest()).decode()
        assert f"'sha256-{digest}'" in policy


def test_hostile_names_are_text_wherever_they_stand() -> None:
    at = str(HOME / f"{ACTIVE}.py")
    loud = msgspec.structs.replace(
        CPU_BOUND,
        findings=tuple(
            msgspec.structs.replace(
                f, name=ACTIVE, summary=f"{ACTIVE} `{ACTIVE}`", location=Place(at, 3),
                evidence=tuple(msgspec.structs.replace(m, name=ACTIVE, value=ACTIVE, unit="text",
                                                       source=ACTIVE) for m in f.evidence),
            )
            for f in CPU_BOUND.findings
        ),
        environment=CPU_BOUND.environment | {"script": ACTIVE, "command": [ACTIVE]},
        capture={ACTIVE: Captured("failed", ACTIVE)},
        notes=(Note("x", ACTIVE),),
    )  # fmt: skip
    plain, hostile = Parsed(page(CPU_BOUND)), Parsed(page(loud, ACTIVE))
    seen = {tag for tag, _ in plain.tags}
    assert {tag for tag, _ in hostile.tags} <= seen
    assert len([t for t, _ in hostile.tags if t == "script"]) == 3
    attributes = {key for _, found in hostile.tags for key in found}
    assert not any(key.startswith("on") for key in attributes)
    assert {f.get("href") for t, f in hostile.tags if t == "a"} <= {
        f.get("href") for t, f in plain.tags if t == "a"
    }
    assert ACTIVE[:20] in hostile.text, "shown as it is"


def test_control_and_reordering_characters_are_spelled_out() -> None:
    text = page(HOSTILE, "evil\x1b[2J\u202egnp\x07")
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]", text)
    assert "\\u202e" in Parsed(text).text


def test_names_in_charts_cannot_be_markup_of_plotly() -> None:
    found = figures(page(CPU_BOUND, "<b>bold</b><a href='//x'>y</a>"))
    said = [
        text for figure in found.values() for trace in figure["data"]
        for key in ("labels", "text", "hovertext", "name") for text in _texts(trace.get(key))
    ]  # fmt: skip
    assert any("&lt;b&gt;" in text for text in said)
    assert not any("<b>" in text or "<a " in text for text in said)


def _texts(value: Any) -> list[str]:
    return [value] if isinstance(value, str) else list(value or ())


def test_hot_lines_of_the_source_are_marked_with_what_was_measured() -> None:
    lines = ("def train():", "    for batch in DataLoader(data):", "        step(batch)")
    text = page(CPU_BOUND, excerpts=with_source(*lines))
    row = re.search(r"<tr class=\"here[^>]*>.*?</tr>", text, re.DOTALL)
    assert row is not None
    cells = Parsed(row[0]).text
    assert "41 (the finding's line)" in cells
    assert "6,650" in cells and "for batch in DataLoader(data):" in cells


def test_without_a_verdict_the_page_says_what_was_missing_and_what_to_do() -> None:
    text = Parsed(render("html", UNKNOWN, base_dir=HOME)).text
    assert "Missing: steps (the script ended before its first step)" in text
    assert "What to do: let the script run at least a dozen training steps" in text


def test_a_page_of_the_diagnosis_alone_has_no_charts_and_no_library() -> None:
    text = render("html", UNKNOWN, base_dir=HOME)
    assert len(text) < 60_000
    assert figures(text) == {}


def test_every_step_is_drawn_in_its_window_and_outliers_are_ringed() -> None:
    found = chart(details())
    assert found is not None and found.table is not None
    by_name = {trace["name"]: trace for trace in found.figure["data"]}
    assert sum(len(t["x"]) for name, t in by_name.items() if name != "outlier") == STEPS
    assert by_name["outlier"]["x"] == [OUTLIER]
    assert len(by_name["py-spy"]["x"]) == 5
    epochs = [shape for shape in found.figure["layout"]["shapes"] if "yref" in shape]
    assert [shape["x0"] for shape in epochs] == [-0.5, 28.5]
    assert {row[0].text: row[1].text for row in found.table.rows} == {
        "clean (judged)": "45", "warm-up": "10", "py-spy": "5",
    }  # fmt: skip


def test_of_very_many_steps_the_longest_stay() -> None:
    once = steps()
    many = 500
    longer = msgspec.structs.replace(
        once,
        end_ns=tuple(range(STEPS * many)),
        durations_ns=once.durations_ns * many,
        windows=once.windows * many,
        clean=once.clean * many,
    )
    found = chart(details().add(longer))
    assert found is not None
    drawn = [t for t in found.figure["data"] if t["name"] != "outlier"]
    assert sum(len(trace["x"]) for trace in drawn) <= MOST_POINTS
    assert max(ms for trace in drawn for ms in trace["y"]) == 200


def test_a_caller_is_never_narrower_than_what_it_called() -> None:
    found = figures(page(CPU_BOUND))["flame-training"]["data"][0]
    inner: dict[str, int] = {}
    for parent, value in zip(found["parents"], found["values"], strict=True):
        inner[parent] = inner.get(parent, 0) + value
    for number, value in zip(found["ids"], found["values"], strict=True):
        assert inner.get(number, 0) <= value
    assert "dust" not in " ".join(found["labels"]), "too narrow to be seen"


def test_colours_are_those_of_the_terminal() -> None:
    assert (rgb("color(166)"), rgb("color(244)"), rgb("bold color(32)")) == (
        "#d75f00", "#808080", "#0087d7",
    )  # fmt: skip


def test_a_notebook_shows_the_verdict_without_any_script() -> None:
    found = Parsed(notebook(document(CPU_BOUND), HOME))
    assert not {"script", "link", "iframe", "html", "body"} & {tag for tag, _ in found.tags}
    assert "Preprocessing-bound" in found.text and "TD201" in found.text
    style = re.search(r"<style>(.*?)</style>", notebook(document(CPU_BOUND)), re.DOTALL)
    assert style is not None
    selectors = re.findall(r"(?:^|\})\s*([^{}@/]+)\{", style[1])
    parts = [one.strip() for selector in selectors for one in selector.split(",")]
    assert all(part.startswith(".tdiag") for part in parts), "no rule reaches the notebook's own"
