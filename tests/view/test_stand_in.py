"""The stand-in for Google Charts by itself: names of others, no rows, many rows, other sizes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from .plugin_page import Plugin, cells

if TYPE_CHECKING:
    from playwright.sync_api import Page

HOSTILE = "<img src=x onerror='window.owned=1'><a href='javascript:owned=1'>%{y}</a>&lt;b&gt;"
DRAW = """([kind, columns, rows, options]) => {
    document.querySelector("#app")?.remove();
    document.querySelector("#mine")?.remove();
    const box = document.body.appendChild(document.createElement("div"));
    box.id = "mine";
    box.style.width = "600px";
    const table = new google.visualization.DataTable();
    for (const column of columns) table.addColumn(column);
    table.addRows(rows);
    window.chart = new google.visualization[kind](box);
    return new Promise((done) => {
        window.chart.on?.("ready", done);
        window.chart.draw(table, options);
        if (kind === "Table" || !rows.length) done();
    });
}"""
TEXT, NUMBER = {"type": "string", "label": HOSTILE}, {"type": "number", "label": HOSTILE}
KINDS = {
    "PieChart": ([TEXT, NUMBER], [[HOSTILE, 1], [HOSTILE, 2]]),
    "ColumnChart": ([TEXT, NUMBER], [[HOSTILE, 1], [HOSTILE, 2]]),
    "SteppedAreaChart": ([TEXT, NUMBER], [[HOSTILE, 1], [HOSTILE, 2]]),
    "ComboChart": ([TEXT, NUMBER], [[HOSTILE, 1], [HOSTILE, 2]]),
    "LineChart": ([{"type": "number"}, NUMBER], [[1, 1], [2, 2]]),
    "Timeline": (
        [TEXT, TEXT, {"type": "string", "role": "tooltip"}, NUMBER, NUMBER],
        [[HOSTILE, HOSTILE, HOSTILE, 0, 1], ["1", HOSTILE, HOSTILE, 1, 2]],
    ),
    "Table": ([TEXT, NUMBER], [[HOSTILE, 1], [HOSTILE, 2]]),
}


@pytest.mark.parametrize("kind", KINDS)
def test_hostile_names_do_nothing_and_no_rows_are_said(
    plugin: Plugin, tab: Page, kind: str
) -> None:
    columns, rows = KINDS[kind]
    options = {"title": HOSTILE, "height": 300, "vAxis": {"title": HOSTILE}}
    tab.evaluate(DRAW, [kind, columns, rows, options])
    box = tab.locator("#mine").bounding_box()
    assert box is not None
    for share in (0.2, 0.5, 0.8):
        tab.mouse.move(box["x"] + share * box["width"], box["y"] + box["height"] / 2)
    assert tab.locator("#mine :is(img, a), .gc-tip :is(img, a)").count() == 0
    assert tab.evaluate("window.owned") is None
    assert tab.locator("#mine").get_by_text("<img").count() > 0
    tab.evaluate(DRAW, [kind, columns, [], options])
    assert kind == "Table" or tab.locator("#mine").inner_text() == "No data"


def test_a_table_sorts_turns_pages_and_keeps_to_the_plugins_markup(
    plugin: Plugin, tab: Page
) -> None:
    columns = [{"type": "string", "label": "Name"}, {"type": "number", "label": "Calls"}]
    rows = [[f"<b>op {i:04}</b>", i % 1000] for i in range(5000)] + [["none", None]]
    options = {"page": "enable", "pageSize": 30, "sortColumn": 1, "sortAscending": False}
    tab.evaluate(DRAW, ["Table", columns, rows, options])
    table, status = tab.locator("#mine table"), tab.locator("#mine [role=status]")
    assert [row[1] for row in cells(table)] == ["999"] * 5 + ["998"] * 5 + ["997"] * 5 + [
        "996"
    ] * 5 + ["995"] * 5 + ["994"] * 5
    assert cells(table)[0][0] == "<b>op 0999</b>"
    assert status.inner_text() == "1–30 of 5001"
    assert table.locator("th").nth(1).get_attribute("aria-sort") == "descending"
    next_ = tab.get_by_role("button", name="Next")
    next_.click()
    assert status.inner_text() == "31–60 of 5001" and cells(table)[0][1] == "993"
    table.get_by_role("button", name="Calls").click()
    assert cells(table)[0] == ["none", ""] and cells(table)[1][1] == "0"
    assert table.locator("th").nth(1).get_attribute("aria-sort") == "ascending"
    table.get_by_role("button", name="Name").click()
    assert table.locator("th").nth(1).get_attribute("aria-sort") is None
    assert [row[0] for row in cells(table)][:2] == ["<b>op 0000</b>", "<b>op 0001</b>"]
    tab.evaluate(DRAW, ["Table", columns, rows[:1], {"allowHtml": True}])
    assert cells(table) == [["op 0000", "0"]] and table.locator("b").count() == 1


def test_a_chart_keeps_to_its_box_when_that_changes(plugin: Plugin, tab: Page) -> None:
    tab.evaluate(DRAW, ["ColumnChart", *KINDS["ColumnChart"], {"height": 300}])
    tab.evaluate("document.querySelector('#mine').style.width = '300px'")
    tab.wait_for_function("document.querySelector('#mine .main-svg').clientWidth <= 300")
