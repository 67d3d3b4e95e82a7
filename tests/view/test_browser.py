"""TensorBoard's pages in a browser that reaches nothing but this machine."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pytest

from tests.report.browsing import chromium

from .serving import Shown

if TYPE_CHECKING:
    from playwright.sync_api import Page, Route

PATIENCE_MS = 60_000  # only so that a broken test ends


@pytest.fixture(scope="module")
def tab(page: Shown) -> Iterator[Page]:
    with chromium() as browser:
        made = browser.new_page(viewport={"width": 1400, "height": 1000})
        made.set_default_timeout(PATIENCE_MS)
        made.route("**/*", _only_here)
        yield made


def _only_here(route: Route) -> None:
    if urlsplit(route.request.url).hostname == "127.0.0.1":
        route.continue_()
    else:
        route.abort()


@pytest.fixture
def faults(tab: Page) -> list[str]:
    """What the page complained of, and whom it asked besides this machine."""
    found: list[str] = []
    tab.on("pageerror", lambda error: found.append(str(error)))
    tab.on("requestfailed", lambda request: found.append(request.url))
    return found


def test_the_scalars_are_drawn(tab: Page, page: Shown, faults: list[str]) -> None:
    tab.goto(page.url + "#timeseries")
    card = tab.locator("card-view", has_text="/backward ms").first
    card.locator("svg, canvas").first.wait_for()
    card.get_by_text("some-run").first.wait_for()
    assert "10" in card.inner_text().split()  # ms
    assert faults == []


def test_the_report_is_text(tab: Page, page: Shown, faults: list[str]) -> None:
    tab.goto(page.url + "#text")
    tab.reload()
    tab.get_by_text("data wait", exact=True).first.wait_for()
    assert tab.get_by_text("report/00 verdict").count() > 0
    assert tab.get_by_text("<").count() == 0
    assert faults == []


def test_the_profilers_numbers_are_there_without_its_charts(tab: Page, page: Shown) -> None:
    tab.goto(page.url + "#pytorch_profiler")
    tab.reload()
    inside = tab.frame_locator("iframe[src*=pytorch_profiler]")
    inside.get_by_text("GPU Utilization").wait_for()  # of the first run, the device's
    text = inside.locator("body").inner_text()
    assert "30.0 %" in text and "high time cost on input data loading" in text
