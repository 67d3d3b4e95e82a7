"""The page when nobody waits for it: photographed as it loads, printed before it was read."""

from __future__ import annotations

import base64
import json
import random
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from .browsing import chromium, tab
from .test_html_browser import CHARTS, DESK, written

if TYPE_CHECKING:
    from playwright.sync_api import Browser

PAPER_PX = 703  # 186 mm at 96 an inch: A4 less the page's margins
# What is drawn when the page counts as loaded, and when it is about to be put on paper: this
# listener is the last, and printing waits for nothing after it.
WATCH = """
const drawn = () => [...document.querySelectorAll(".chart")]
  .filter((chart) => chart.querySelector(".main-svg"))
  .map((chart) => [chart.id, chart.querySelector(".main-svg").getBoundingClientRect().width]);
addEventListener("load", () => {
  window.atLoad = drawn();
  addEventListener("beforeprint", () => { window.onPaper = drawn(); });
});
"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as started:
        yield started


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(tmp_path_factory.mktemp("page"))


@pytest.mark.parametrize("height", [DESK["height"], 1_600, 6_000])
def test_the_first_screen_is_drawn_when_the_page_has_loaded(
    browser: Browser, file: Path, height: int
) -> None:
    page = browser.new_page(viewport={"width": DESK["width"], "height": height})
    page.add_init_script(WATCH)
    page.goto(file.as_uri())
    drawn = [name for name, _ in page.evaluate("window.atLoad")]
    tops = page.evaluate(
        "Object.fromEntries([...document.querySelectorAll('.chart')]"
        ".map((chart) => [chart.id, chart.getBoundingClientRect().top]))"
    )
    assert set(drawn) >= {name for name in CHARTS if tops[name] < height}
    assert drawn and (len(drawn) == len(CHARTS)) == (height == 6_000)  # so that it opens quickly
    page.close()


def test_every_chart_is_on_paper_unread(browser: Browser, file: Path) -> None:
    page = browser.new_page(viewport=DESK)
    page.add_init_script(WATCH)
    page.goto(file.as_uri())
    page.pdf(format="A4")
    widths = dict(page.evaluate("window.onPaper"))
    assert tuple(widths) == CHARTS
    assert all(0 < width <= PAPER_PX for width in widths.values())
    page.close()


def test_the_medium_alone_is_enough(browser: Browser, file: Path) -> None:
    with tab(browser, file, viewport=DESK) as shown:
        shown.page.emulate_media(media="print")
        shown.page.locator("[data-drawn]").nth(len(CHARTS) - 1).wait_for(state="attached")
        assert shown.page.locator("#finding-1 .evidence").first.is_visible()
        shown.page.emulate_media(media="screen")
        shown.page.locator("#finding-1 .evidence").first.wait_for(state="hidden")


def test_what_is_packed_is_unpacked(browser: Browser, file: Path) -> None:
    chance = random.Random(1)
    texts = [
        b"",
        b"abcabcabcabc",
        bytes(100_000),
        chance.randbytes(70_000),
        json.dumps([chance.random() for _ in range(20_000)]).encode(),
    ]
    with tab(browser, file) as shown:
        for text in texts:
            for level in (0, 1, 5, 9):
                for strategy in (zlib.Z_DEFAULT_STRATEGY, zlib.Z_FIXED, zlib.Z_HUFFMAN_ONLY):
                    packer = zlib.compressobj(level, strategy=strategy)
                    packed = packer.compress(text) + packer.flush()
                    found = shown.page.evaluate(
                        "(text) => { const bytes = inflate(Uint8Array.from(atob(text),"
                        " (c) => c.charCodeAt(0))); let out = '';"
                        " for (const byte of bytes) out += String.fromCharCode(byte);"
                        " return btoa(out); }",
                        base64.b64encode(packed).decode(),
                    )
                    assert base64.b64decode(found) == text
        packed = zlib.compress(texts[-1])[:1000]
        with pytest.raises(Exception, match="broken"):
            shown.page.evaluate(
                "(text) => inflate(Uint8Array.from(atob(text), (c) => c.charCodeAt(0))).length",
                base64.b64encode(packed).decode(),
            )
