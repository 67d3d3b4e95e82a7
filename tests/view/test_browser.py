"""TensorBoard's pages in a browser that reaches nothing but this machine."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from .serving import Shown

if TYPE_CHECKING:
    from playwright.sync_api import Page


@pytest.fixture(scope="module")
def loaded(tab: Page, page: Shown, noticed: list[str]) -> Page:
    """It takes seconds."""
    tab.goto(page.url)
    return tab


def choose(tab: Page, plugin: str) -> None:
    """In the bar at the top."""
    tab.locator(f"app-header [data-plugin-id={plugin}]").click()


def test_the_scalars_are_drawn(loaded: Page, faults: list[str]) -> None:
    tab = loaded
    choose(tab, "timeseries")
    card = tab.locator("card-view", has_text="/backward ms").first
    card.locator("svg, canvas").first.wait_for()
    card.get_by_text("some-run").first.wait_for()
    assert "10" in card.inner_text().split()  # ms
    assert faults == []


def test_the_report_is_text(loaded: Page, faults: list[str]) -> None:
    tab = loaded
    choose(tab, "text")
    tab.get_by_text("data wait", exact=True).first.wait_for()
    assert tab.get_by_text("report/00 verdict").count() > 0
    assert tab.get_by_text("<").count() == 0
    assert faults == []


def test_the_profilers_tab_is_complete(loaded: Page, faults: list[str]) -> None:
    tab = loaded
    choose(tab, "pytorch_profiler")
    inside = tab.frame_locator("iframe[src*=pytorch_profiler]")
    inside.get_by_text("GPU Utilization").wait_for()  # of the first run, the device's
    text = inside.locator("body").inner_text()
    assert "30.0 %" in text and "high time cost on input data loading" in text
    inside.locator(".gc-pie .slice").first.wait_for()
    inside.locator(".gc-plot .bars .point").first.wait_for()
    assert faults == []
