"""The page in a browser: it draws, sorts, searches, zooms and unfolds, and asks for nothing. Also
when nobody waits for it: photographed as it loads, printed before it was read."""

from __future__ import annotations

import base64
import json
import random
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from tdiag.model.notes import Note

from .browsing import Tab, chromium, tab
from .building import HOME, RUN_DIR, render
from .detailing import details, ranked
from .samples import CPU_BOUND
from .test_html import ACTIVE

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

CHARTS = ("ranks", "steps", "timeline", "system", "flame-training", "flame-workers")
DESK, PHONE = {"width": 1280, "height": 800}, {"width": 400, "height": 800}
TALL, WHOLE = {"width": 1280, "height": 1_600}, {"width": 1280, "height": 6_000}
PAPER_PX = 703  # 186 mm at 96 an inch: A4 less the page's margins


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as started:
        yield started


def written(folder: Path, name: str = "plain") -> Path:
    """Plotly reads names in charts, so that every one of them is ``name``."""
    diagnosis = CPU_BOUND
    if name != "plain":
        loud = tuple(
            msgspec.structs.replace(f, name=name, summary=name) for f in diagnosis.findings
        )
        diagnosis = msgspec.structs.replace(diagnosis, findings=loud, notes=(Note("x", name),))
    file = folder / "report.html"
    file.write_text(
        render(
            "html", ranked(diagnosis, name), base_dir=HOME, run_dir=RUN_DIR, evidence=details(name)
        )
    )
    return file


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(tmp_path_factory.mktemp("page"))


# A page draws for seconds: tests share one and leave it as it was opened.
REMEMBER = "document.querySelectorAll('details').forEach((d) => { d.asOpened = d.open; })"
RESTORE = """() => {
    document.querySelectorAll('details').forEach((d) => { d.open = d.asOpened; });
    document.querySelectorAll('input').forEach((field) => {
        if (field.value) { field.value = ''; field.dispatchEvent(new Event('input')); }
    });
    scrollTo(0, 0);
}"""
# Where charts are, and how wide those are that are drawn, when the page counts as loaded; and when
# it is about to be put on paper: this listener is the last, and printing waits for nothing after.
WATCH = """
const drawn = () => [...document.querySelectorAll(".chart")]
  .filter((chart) => chart.querySelector(".main-svg"))
  .map((chart) => [chart.id, chart.querySelector(".main-svg").getBoundingClientRect().width]);
addEventListener("load", () => {
  window.atLoad = drawn();
  window.tops = Object.fromEntries([...document.querySelectorAll(".chart")]
    .map((chart) => [chart.id, chart.getBoundingClientRect().top]));
  addEventListener("beforeprint", () => { window.onPaper = drawn(); });
});
"""


@contextmanager
def opened(browser: Browser, file: Path, **context: Any) -> Iterator[Tab]:
    with tab(browser, file, WATCH, **context) as shown:
        js(shown.page, REMEMBER)
        yield shown


@pytest.fixture(scope="module")
def shared(browser: Browser, file: Path) -> Iterator[Tab]:
    with opened(browser, file, viewport=DESK) as shown:
        yield shown


@pytest.fixture(scope="module")
def tall(browser: Browser, file: Path) -> Iterator[Tab]:
    with opened(browser, file, viewport=TALL) as shown:
        yield shown


@pytest.fixture(scope="module")
def dark_whole(browser: Browser, file: Path) -> Iterator[Tab]:
    with opened(browser, file, viewport=WHOLE, color_scheme="dark") as shown:
        yield shown


@pytest.fixture
def desk(shared: Tab) -> Iterator[Tab]:
    yield shared
    js(shared.page, RESTORE)
    assert shared.quiet(), (shared.said, shared.asked, shared.opened)


@pytest.fixture
def dark(dark_whole: Tab) -> Iterator[Tab]:
    yield dark_whole
    js(dark_whole.page, RESTORE)
    assert dark_whole.quiet()


def drawn(page: Page, *charts: str) -> None:
    """Scroll to these charts, else to all of them, and wait until they are there."""
    for name in charts or CHARTS:
        page.locator(f"#{name}").scroll_into_view_if_needed()
        page.wait_for_selector(f"#{name}[data-drawn]")


def js(page: Page, expression: str) -> Any:
    return page.evaluate(expression)


def level(page: Page, chart: str) -> str:
    return str(js(page, f"document.getElementById({chart!r})._fullData[0].level || '0'"))


def test_the_whole_page_draws_without_a_request_or_a_word_on_the_console(desk: Tab) -> None:
    drawn(desk.page)
    for name in CHARTS:
        marks = "path.surface, path.point, .point path, .js-line"
        assert desk.page.locator(f"#{name} svg").first.is_visible()
        assert js(desk.page, f"document.querySelectorAll('#{name} :is({marks})').length") > 0, name


@pytest.mark.parametrize(
    ("name", "height"), [("shared", 800), ("tall", 1_600), ("dark_whole", 6_000)]
)
def test_the_first_screen_is_drawn_when_the_page_has_loaded(
    name: str, height: int, request: pytest.FixtureRequest
) -> None:
    page = request.getfixturevalue(name).page
    assert page.viewport_size["height"] == height
    drawn, tops = [name for name, _ in js(page, "window.atLoad")], js(page, "window.tops")
    assert set(drawn) >= {name for name in CHARTS if tops[name] < height}
    assert drawn and (len(drawn) == len(CHARTS)) == (height == 6_000)  # so that it opens quickly


def test_verdict_and_findings_are_on_the_first_screen(desk: Tab) -> None:
    bottom = DESK["height"]
    for selector in (".verdict", "#finding-1 > summary", ".bar"):
        box = desk.page.locator(selector).first.bounding_box()
        assert box is not None and box["y"] + box["height"] <= bottom, selector


def test_a_finding_unfolds_by_keyboard_to_its_evidence(desk: Tab) -> None:
    facts = desk.page.locator("#finding-1 .evidence").first
    assert not facts.is_visible()
    desk.page.locator("#finding-1 > summary").focus()
    desk.page.keyboard.press("Enter")
    assert facts.is_visible()


def test_a_table_sorts_by_value_and_back(desk: Tab) -> None:
    page = desk.page
    page.locator("#tables-s details", has_text="Ops, per step").locator("summary").click()
    header = page.locator("#host-ops th", has_text="calls")
    column = "[...document.querySelectorAll('#host-ops tbody tr')].map(r => +r.cells[1].dataset.v)"
    header.get_by_role("button").click()
    assert header.get_attribute("aria-sort") == "descending"
    large_first = js(page, column)
    assert large_first == sorted(large_first, reverse=True) and len(large_first) > 1
    header.get_by_role("button").click()
    assert header.get_attribute("aria-sort") == "ascending"
    assert js(page, column) == large_first[::-1]
    name = page.locator("#host-ops th", has_text="op").first
    name.get_by_role("button").click()
    assert header.get_attribute("aria-sort") is None
    assert page.locator("#host-ops tbody tr td").first.inner_text() == "aten::mm"


def test_a_table_is_searched_for_all_words(desk: Tab) -> None:
    page = desk.page
    page.locator("#tables-s details", has_text="Ops, per step").locator("summary").click()
    page.locator("#host-ops input").fill("MY plain")
    assert page.locator("#host-ops tbody tr:visible").count() == 1
    assert page.locator("#host-ops [role=status]").inner_text() == "1 of 2 rows"
    page.locator("#host-ops input").fill("")
    assert page.locator("#host-ops tbody tr:visible").count() == 2


def test_a_flame_graph_zooms_by_click_and_by_keyboard(desk: Tab) -> None:
    page = desk.page
    drawn(page, "flame-training")
    page.locator("#flame-training .slice", has_text="train:41").first.click()
    page.wait_for_function("document.getElementById('flame-training')._fullData[0].level === '2'")
    page.get_by_role("button", name="Whole tree").first.click()
    assert level(page, "flame-training") == "0"
    search = page.locator("input[data-flame=flame-training]")
    search.fill("backward")
    search.press("Enter")
    assert level(page, "flame-training") == "4"
    search.press("Escape")
    assert level(page, "flame-training") == "0"


def test_a_search_in_a_flame_graph_counts_nested_matches_once(desk: Tab) -> None:
    page = desk.page
    drawn(page, "flame-training")
    page.locator("input[data-flame=flame-training]").fill("train.py")  # a caller and its callee
    status = page.locator("#flame-s [role=status]").first
    assert status.inner_text() == "2 found, 100.0% of the samples"
    colors = js(page, "document.getElementById('flame-training')._fullData[0].marker.colors")
    assert colors.count("#c2007b") == 2
    page.locator("input[data-flame=flame-training]").fill("no such function")
    assert status.inner_text() == "nothing found"


def test_hostile_names_do_nothing_in_any_chart_or_table(browser: Browser, tmp_path: Path) -> None:
    with tab(browser, written(tmp_path, ACTIVE), viewport=DESK) as shown:
        drawn(shown.page)
        shown.page.locator("input[data-flame=flame-training]").fill("<img")
        js(shown.page, "document.querySelectorAll('details').forEach((d) => { d.open = true; })")
        shown.page.locator("#flame-training .slice").nth(2).hover()
        assert shown.page.locator("img, a[href*=evil], svg a").count() == 0
        assert shown.quiet(), (shown.said, shown.asked, shown.opened)


def test_the_policy_stops_a_script_that_gets_in_all_the_same(tall: Tab) -> None:
    js(tall.page, """() => {
        const script = document.createElement("script");
        script.textContent = "window.owned = true";
        document.body.append(script);
        const broken = "<img src=/x onerror='window.owned = 1'>";
        document.body.insertAdjacentHTML("beforeend", broken);
        document.body.append(Object.assign(new Image(), {src: "https://example.org/x"}));
    }""")  # fmt: skip
    tall.page.wait_for_timeout(200)
    assert js(tall.page, "window.owned") is None
    assert all("Content Security Policy" in said for said in tall.said) and tall.said


def fits_and_stands_out(page: Page, width: int, background: str) -> None:
    drawn(page)
    js(page, "document.querySelectorAll('details').forEach((d) => { d.open = true; })")
    assert js(page, "document.documentElement.scrollWidth") <= width
    paint = js(page, "getComputedStyle(document.body).backgroundColor")
    assert (paint == "rgb(255, 255, 255)") == (background == "light")
    tick = "getComputedStyle(document.querySelector('#steps .xtick text')).fill"
    assert js(page, tick) == js(page, "getComputedStyle(document.body).color")


def test_nothing_is_wider_than_a_phone_and_text_stands_out(browser: Browser, file: Path) -> None:
    with tab(browser, file, viewport=PHONE, color_scheme="light") as shown:
        fits_and_stands_out(shown.page, PHONE["width"], "light")
        assert shown.quiet()


def test_nothing_is_wider_than_the_screen_and_text_stands_out_in_the_dark(dark: Tab) -> None:
    fits_and_stands_out(dark.page, WHOLE["width"], "dark")


def test_paper_shows_what_is_folded_in_black_on_white(dark: Tab) -> None:
    page = dark.page
    drawn(page, "steps")
    page.emulate_media(media="print", color_scheme="dark")
    js(page, "window.dispatchEvent(new Event('beforeprint'))")
    assert page.locator("#finding-1 .evidence").first.is_visible()
    assert not page.locator("nav").is_visible()
    assert js(page, "getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    tick = "getComputedStyle(document.querySelector('#steps .xtick text')).fill"
    assert js(page, tick) == "rgb(0, 0, 0)"
    wide = "document.querySelector('#steps svg').getBoundingClientRect().width"
    assert js(page, wide) <= PAPER_PX
    js(page, "window.dispatchEvent(new Event('afterprint'))")
    page.emulate_media(media="screen")
    assert not page.locator("#finding-1 .evidence").first.is_visible()
    js(page, "charts.forEach((chart) => draw(chart))")  # for the next test: in the screen's colours


def test_every_chart_is_on_paper_unread(browser: Browser, file: Path) -> None:
    with tab(browser, file, WATCH, viewport=DESK) as shown:
        shown.page.pdf(format="A4")
        widths = dict(js(shown.page, "window.onPaper"))
    assert tuple(widths) == CHARTS
    assert all(0 < width <= PAPER_PX for width in widths.values())


def test_the_medium_alone_is_enough(browser: Browser, file: Path) -> None:
    with tab(browser, file, viewport=DESK) as shown:
        shown.page.emulate_media(media="print")
        shown.page.locator("[data-drawn]").nth(len(CHARTS) - 1).wait_for(state="attached")
        assert shown.page.locator("#finding-1 .evidence").first.is_visible()
        shown.page.emulate_media(media="screen")
        shown.page.locator("#finding-1 .evidence").first.wait_for(state="hidden")


# Which of the packed texts is unpacked to the given one.
UNPACK = """([text, packed]) => {
    const bytes = (text) => {
        const packed = atob(text), found = new Uint8Array(packed.length);
        for (let i = 0; i < packed.length; i++) found[i] = packed.charCodeAt(i);
        return found;
    };
    const wanted = bytes(text);
    return packed.map((one) => {
        const found = inflate(bytes(one));
        return found.length === wanted.length && found.every((byte, i) => byte === wanted[i]);
    });
}"""


def test_what_is_packed_is_unpacked(desk: Tab) -> None:
    chance = random.Random(1)
    texts = [
        b"",
        b"abcabcabcabc",
        bytes(100_000),
        chance.randbytes(70_000),
        json.dumps([chance.random() for _ in range(20_000)]).encode(),
    ]
    for text in texts:
        packed = []
        for level in (0, 1, 5, 9):
            for strategy in (zlib.Z_DEFAULT_STRATEGY, zlib.Z_FIXED, zlib.Z_HUFFMAN_ONLY):
                packer = zlib.compressobj(level, strategy=strategy)
                packed.append(base64.b64encode(packer.compress(text) + packer.flush()).decode())
        found = desk.page.evaluate(UNPACK, [base64.b64encode(text).decode(), packed])
        assert found == [True] * 12
    cut = base64.b64encode(zlib.compress(texts[-1])[:1000]).decode()
    with pytest.raises(Exception, match="broken"):
        desk.page.evaluate(UNPACK, ["", [cut]])


def test_without_scripts_verdict_findings_and_budget_read(browser: Browser, file: Path) -> None:
    with tab(browser, file, java_script_enabled=False, viewport=DESK) as shown:
        text = shown.page.locator("main").inner_text()
        assert "Preprocessing-bound" in text and "TD201" in text and "data wait: CPU" in text
        assert not shown.page.locator("input[type=search]").first.is_visible()
        shown.page.locator("#finding-1 > summary").click()
        assert shown.page.locator("#finding-1 .evidence").first.is_visible()
        assert "Charts, sorting and searching need scripts" in shown.page.inner_text("body")
