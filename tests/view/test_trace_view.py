"""The Trace view of torch-tb-profiler in a browser that reaches nothing but this machine."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

from .plugin_page import Plugin
from .serving import TORCH

if TYPE_CHECKING:
    from playwright.sync_api import Frame, Page


@pytest.fixture
def viewer(plugin: Plugin, tab: Page) -> Frame:
    """It shows the trace of the small training; opened once, and no field has the focus."""
    if not any("trace_embedding" in frame.url for frame in tab.frames):
        plugin.show(TORCH, "Trace")
    inside = tab.frame_locator("iframe[src*=trace_embedding]")
    inside.get_by_text("thread ").first.wait_for()
    frame = next(frame for frame in tab.frames if "trace_embedding" in frame.url)
    frame.evaluate("""() => {
        let focused = document.activeElement;
        while (focused?.shadowRoot?.activeElement) focused = focused.shadowRoot.activeElement;
        focused?.blur();
    }""")
    return frame


DRAGS = 4  # a page that is still drawing misses one


def test_it_opens_the_trace_and_finds_its_slices(plugin: Plugin, viewer: Frame) -> None:
    assert viewer.get_by_text("Import error").count() == 0
    slices = viewer.evaluate("""() => {
        const found = [];
        const {model} = document.querySelector("tr-ui-timeline-view");
        for (const event of model.getDescendantEvents()) found.push(event.title);
        return found;
    }""")
    events = plugin.ask("trace", TORCH)["traceEvents"]
    linear = [event for event in events if event.get("name") == "aten::linear"]
    assert slices.count("aten::linear") == len(linear) == 3

    search = viewer.locator("tr-ui-find-control")
    search.locator("input").fill("aten::linear")
    search.get_by_text(f"of {len(linear)}").wait_for()
    search.locator("input").press("Enter")
    search.get_by_text(f"1 of {len(linear)}").wait_for()
    analysis = viewer.locator("tr-ui-a-analysis-view")
    analysis.get_by_text("1 item selected").wait_for()
    said = analysis.inner_text()
    assert "aten::linear" in said
    external = {str(event["args"]["External id"]) for event in linear}
    assert external.intersection(said.split())


def test_a_drag_selects_slices_and_w_zooms(tab: Page, viewer: Frame) -> None:
    scale = """document.querySelector("tr-ui-timeline-view").trackView_.viewport
        .currentDisplayTransform.scaleX"""
    before = viewer.evaluate(scale)
    ruler = viewer.locator("canvas").first.bounding_box()
    assert ruler is not None
    from playwright.sync_api import TimeoutError  # a browser is there

    # Nearly all of the width, because a busy machine leaves gaps between the slices.
    left, right = ruler["x"] + 20, ruler["x"] + ruler["width"] - 20
    below = ruler["y"] + ruler["height"]
    viewer.locator(".tool-button").first.click()
    selected = viewer.locator("tr-ui-a-analysis-view").get_by_text("items selected")
    for _ in range(DRAGS):
        tab.mouse.move(left, below + 30)
        tab.mouse.down()
        tab.mouse.move(right, below + 300, steps=5)
        tab.mouse.up()
        with suppress(TimeoutError):
            selected.wait_for(timeout=5_000)
            break
    assert selected.is_visible()
    tab.keyboard.press("w")
    viewer.wait_for_function(f"{scale} > {before}")


def test_a_file_that_is_no_trace_is_refused_in_words(viewer: Frame) -> None:
    viewer.evaluate("window.postMessage({name: 'mine', data: '{nonsense'}, '*')")
    message = viewer.locator(".overlay", has_text="Import 'mine' failed")
    message.get_by_text("✕").click()  # what is in its frame, and in its content
    message.wait_for(state="detached")
