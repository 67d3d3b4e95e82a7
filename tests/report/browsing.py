"""Headless Chromium for tests of pages; they are skipped where there is none."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
# No sandbox: tests run as root in containers. The rest keeps the browser itself off the network.
FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


@contextmanager
def chromium() -> Iterator[Browser]:
    """The browser that ``TDIAG_BROWSER`` names, else one on the path; else the test is skipped."""
    named = os.environ.get("TDIAG_BROWSER")
    path = named or next(filter(None, map(shutil.which, NAMES)), None)
    if path is None:
        pytest.skip("no Chromium here: install one, or name it in TDIAG_BROWSER")
    playwright = pytest.importorskip("playwright.sync_api")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=path, args=list(FLAGS))
        try:
            yield browser
        finally:
            browser.close()


@dataclass
class Tab:
    """A page, and what it did besides being shown: ``said`` on its console, ``asked`` of the
    network, its own file left out; ``opened``: dialogs."""

    page: Page
    said: list[str] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)
    opened: list[str] = field(default_factory=list)

    def quiet(self) -> bool:
        return not (self.said or self.asked or self.opened)


@contextmanager
def tab(browser: Browser, file: Path, first: str = "", **context: Any) -> Iterator[Tab]:
    """``first``: a script that runs before the page's own; ``context``: as of
    ``browser.new_context`` (viewport, color_scheme, …)."""
    made = browser.new_context(**context)
    made.add_init_script(first)
    shown = Tab(made.new_page())
    page, address = shown.page, file.as_uri()
    page.on("console", lambda message: shown.said.append(message.text))
    page.on("pageerror", lambda error: shown.said.append(str(error)))
    page.on("dialog", lambda dialog: (shown.opened.append(dialog.message), dialog.dismiss()))
    page.on("popup", lambda popup: shown.opened.append(popup.url))
    page.on("request", lambda r: None if r.url == address else shown.asked.append(r.url))
    try:
        page.goto(address)
        yield shown
    finally:
        made.close()
