"""The page of torch-tb-profiler, as a reader uses it."""

from __future__ import annotations

import gzip
import json
import urllib.request
from collections.abc import Callable
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from .serving import DEVICE, PLUGIN, TORCH, Shown

if TYPE_CHECKING:
    from playwright.sync_api import Locator, Page

WORKERS = {DEVICE: "device_0", TORCH: "torch_0"}


class Plugin:
    """The plugin's page: choose what is shown, and ask its server the same."""

    def __init__(self, tab: Page, page: Shown) -> None:
        self.tab, self.page = tab, page
        tab.goto(f"{page.url}{PLUGIN}/index.html")
        tab.locator(".gc").first.wait_for()

    def choose(self, number: int, text: str) -> None:
        boxes = self.tab.locator("[role=button][aria-haspopup=listbox]:visible")
        boxes.nth(number).click()
        option = self.tab.locator("li[role=option]", has_text=text).first
        option.click()
        option.wait_for(state="detached")

    def show(self, run: str, view: str) -> None:
        """Whatever is shown now."""
        normal = self.tab.get_by_role("tab", name="Normal")
        if normal.get_attribute("aria-selected") != "true":
            normal.click()
        boxes = self.tab.locator("[role=button][aria-haspopup=listbox]:visible")
        if boxes.first.inner_text() != run:
            with self.tab.expect_response(lambda answer: "/workers?" in answer.url):
                self.choose(0, run)
        self.choose(1, view)

    def ask(self, path: str, run: str, /, **words: str) -> Any:
        words = {"run": run, "worker": WORKERS.get(run, "All"), "span": "default", **words}
        with urllib.request.urlopen(f"{self.page.url}{PLUGIN}/{path}?{urlencode(words)}") as answer:
            text = answer.read()
        return json.loads(gzip.decompress(text) if text[:2] == b"\x1f\x8b" else text)

    def plots(self, kind: str = "") -> list[list[dict[str, Any]]]:
        """What Plotly drew of every chart so far."""
        return self.tab.evaluate(  # type: ignore[no-any-return]
            "(kind) => [...document.querySelectorAll('.gc-plot:has(.main-svg)')]"
            ".map((plot) => plot.data.map("
            "({type, name, x, y, values}) => ({type, name, x, y, values})))"
            ".filter((data) => !kind || data[0].type === kind)",
            kind,
        )


def cells(table: Locator) -> list[list[str]]:
    return [row.locator("td").all_inner_texts() for row in table.locator("tbody tr").all()]


def agree(tab: Page, found: Callable[[], object], wanted: object) -> None:
    """The page draws when its server has answered, and some things twice."""
    for _ in range(100):
        if found() == wanted:
            return
        tab.wait_for_timeout(100)
    assert found() == wanted


def tooltip(tab: Page) -> str:
    tab.locator(".gc-tip").wait_for()
    return tab.locator(".gc-tip").inner_text()
