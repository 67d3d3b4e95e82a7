"""The views of torch-tb-profiler in a browser that reaches nothing but this machine: what it draws
is what the plugin's own JSON says, and what the plugin listens to is heard."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlsplit

import pytest

from .plugin_page import Plugin, agree, cells, tooltip
from .serving import DEVICE, RANKS, TORCH

if TYPE_CHECKING:
    from playwright.sync_api import Page


def number(text: str) -> float:
    return float(text.replace(",", ""))


def values(graph: dict[str, Any], top: int = 10) -> list[tuple[str, float]]:
    return sorted(((name, value) for name, value in graph["rows"]), key=lambda row: -row[1])[:top]


def pies_are(plugin: Plugin, wanted: list[list[tuple[str, float]]]) -> None:
    def found() -> list[list[tuple[str, float]]]:
        names = [pie.locator("li").all_inner_texts() for pie in plugin.tab.locator(".gc-pie").all()]
        numbers = [pie["values"] for (pie,) in plugin.plots("pie")]
        return [list(zip(*both, strict=False)) for both in zip(names, numbers, strict=False)]

    agree(plugin.tab, found, wanted)


def test_overview(plugin: Plugin, tab: Page) -> None:
    plugin.show(DEVICE, "Overview")
    tab.get_by_text("GPU Summary").wait_for()
    asked = plugin.ask("overview", DEVICE)
    tab.locator(".gc table tbody tr").first.wait_for()
    (total,) = asked["performance"]
    rows = [total, *total["children"]]
    shown = cells(tab.locator(".gc table").first)
    assert [name for name, _, _ in shown] == [row["name"] for row in rows]
    for (_, value, share), row in zip(shown, rows, strict=True):
        assert number(value) == pytest.approx(row["value"], abs=0.001)
        assert number(share) == pytest.approx(float(row["extra"]), abs=0.001)
    assert cells(tab.locator(".gc table").first)[1][1] == "30,000"  # the kernel's µs
    pies_are(plugin, [[(row["name"], int(row["value"])) for row in total["children"]]])
    tab.locator(".gc-plot .bars").first.wait_for()
    (bars,) = plugin.plots("bar")
    columns, steps = asked["steps"]["columns"], asked["steps"]["rows"]
    names = [column["name"] for column in columns[1:] if column.get("role") != "tooltip"]
    assert [bar["name"] for bar in bars] == names
    assert [bar["y"] for bar in bars] == [
        [row[2 * i + 1] for row in steps] for i in range(len(names))
    ]
    kernels = tab.locator(".gc-plot .bars").first.locator(".point path").nth(1)
    kernels.hover(force=True)
    assert "Kernel: 30000" in tooltip(tab) and "<" not in tooltip(tab)
    assert tab.locator(".gc-tip b").count() == 1  # the plugin asked for markup there


def test_operators(plugin: Plugin, tab: Page) -> None:
    plugin.show(DEVICE, "Operator")
    tab.get_by_text("Operator View").wait_for()
    asked = plugin.ask("operation", DEVICE, group_by="Operation")
    parts = ("device_self_time", "device_total_time", "host_self_time", "host_total_time")
    pies_are(plugin, [values(asked[part]) for part in parts])


def test_a_slice_is_picked_out_as_the_plugin_wants(plugin: Plugin, tab: Page) -> None:
    plugin.show(DEVICE, "Operator")
    pie = tab.locator(".gc-pie").nth(3)
    pie.locator("li").first.hover()
    name, value = values(plugin.ask("operation", DEVICE, group_by="Operation")["host_total_time"])[
        0
    ]
    first, second = tooltip(tab).split("\n")
    assert first == name and number(second.split(" (")[0]) == pytest.approx(value)
    assert pie.locator("li[aria-current]").all_inner_texts() == [name]
    tab.mouse.move(5, 5)
    tab.locator(".gc-tip").wait_for(state="detached")
    assert pie.locator("li[aria-current]").count() == 0


def test_kernels(plugin: Plugin, tab: Page) -> None:
    plugin.show(DEVICE, "Kernel")
    tab.get_by_text("Kernel View").wait_for()
    total = plugin.ask("kernel", DEVICE, group_by="Kernel")["total"]
    cores = plugin.ask("kernel/tc_pie", DEVICE)["total"]
    top = len(total["rows"])  # of the kernels; the plugin shows as many of any chart
    pies_are(plugin, [values(total, top), values(cores, top)])


def test_memory_and_its_selections(plugin: Plugin, tab: Page) -> None:
    asks: list[dict[str, list[str]]] = []
    tab.on(
        "request",
        lambda request: (
            asks.append(parse_qs(urlsplit(request.url).query))
            if urlsplit(request.url).path.endswith("/memory_events")
            else None
        ),
    )
    plugin.show(TORCH, "Memory")
    tab.get_by_text("Memory View").wait_for()
    curve = plugin.ask("memory_curve", TORCH)
    rows = curve["rows"]["CPU"]
    assert len(rows) > 10
    tab.locator(".gc-plot .js-line").first.wait_for()
    (lines,) = plugin.plots("scatter")
    for column, line in enumerate(lines[:-1], start=1):
        assert line["x"] == [row[0] for row in rows]
        assert line["y"] == [row[column] for row in rows]
        assert line["name"] == curve["columns"][column]["name"]
    assert tab.get_by_text(curve["metadata"]["peaks"]["CPU"]).count() == 1

    def select(gesture: str) -> list[float]:
        """Drag over the second quarter, or the like, and wait until the tables are asked for."""
        box = tab.locator(".gc-plot .nsewdrag").bounding_box()
        assert box is not None
        asks.clear()
        middle = box["y"] + box["height"] / 2
        if gesture == "drag":
            tab.mouse.move(box["x"] + box["width"] / 4, middle)
            tab.mouse.down()
            tab.mouse.move(box["x"] + box["width"] / 2, middle, steps=5)
            tab.mouse.up()
        else:
            tab.mouse.click(box["x"] + 20, middle, button="right")
        for _ in range(100):
            tab.wait_for_timeout(100)
            if asks:
                break
        return [float(asks[-1][name][0]) for name in ("start_ts", "end_ts")]

    scale, bias = 1 / curve["metadata"]["time_factor"], curve["metadata"]["first_ts"]
    first, last = rows[0][0], rows[-1][0]
    part = select("drag")
    assert part == pytest.approx(
        [(first + share * (last - first)) * scale + bias for share in (0.25, 0.5)],
        abs=0.01 * (last - first) * scale,
    )
    assert select("right click") == pytest.approx(
        [first * scale + bias, last * scale + bias], abs=1
    )

    tab.wait_for_timeout(300)
    event = tab.locator("tbody tr", has_text="aten::").first
    _, _, allocated, released, _ = event.locator("td").all_inner_texts()
    event.hover()
    tab.wait_for_function("document.querySelector('.gc-plot').data.at(-1).x.length > 0")
    marked = plugin.plots("scatter")[0][-1]
    times = [float(text) for text in (allocated, released) if text]
    assert [round(x, 2) for x in marked["x"]] == times
    points = {(row[0], row[1]) for row in rows}
    assert points.issuperset(zip(marked["x"], marked["y"], strict=True))


def test_modules(plugin: Plugin, tab: Page) -> None:
    plugin.show(TORCH, "Module")
    tab.get_by_text("Module View").wait_for()
    tab.locator(".gc-plot .main-svg").first.wait_for()
    spans: list[tuple[int, str, float, float]] = []

    def walk(node: dict[str, Any], level: int) -> None:
        spans.append((level, node["name"], node["start_time"], node["end_time"]))
        for child in node["children"]:
            walk(child, level + 1)

    walk(plugin.ask("tree", TORCH), 0)
    paths = tab.evaluate(
        "document.querySelector('.gc-plot').layout.shapes.map(({path}) => path).join('')"
    )
    bars = sorted(tuple(map(float, bar.split("V")[0].split("H"))) for bar in _bars(paths))
    assert bars == sorted((begin / 1e3, end / 1e3) for _, _, begin, end in spans)
    level, name, begin, end = max(
        (span for span in spans if "Linear" in span[1]), key=lambda span: span[3] - span[2]
    )
    box = tab.locator(".gc-plot .nsewdrag").bounding_box()
    assert box is not None
    _, _, from_, to = spans[0]
    lanes = max(level for level, _, _, _ in spans) + 1
    across = ((begin + end) / 2 - from_) / (to - from_)
    tab.mouse.move(
        box["x"] + across * box["width"], box["y"] + (level + 0.5) * box["height"] / lanes
    )
    assert tooltip(tab) == f"{name} Duration: {_js(end - begin)} us"


def _bars(paths: str) -> list[str]:
    """``beginHend…`` of each rectangle."""
    return [bar.partition(",")[0] + "H" + bar.partition("H")[2] for bar in paths.split("M")[1:]]


def _js(value: float) -> str:
    return repr(value).removesuffix(".0")


def test_distributed(plugin: Plugin, tab: Page) -> None:
    plugin.show(RANKS, "Distributed")
    tab.get_by_text("Distributed View").wait_for()
    tab.locator(".gc table").first.wait_for()
    tab.locator(".gc-plot .bars").nth(5).wait_for()  # four and two
    overlap, wait = plugin.plots("bar")
    for bars, path in ((overlap, "overlap"), (wait, "waittime")):
        asked = plugin.ask(f"distributed/{path}", RANKS)
        heights = asked["data"]["all"]
        assert [bar["name"] for bar in bars] == asked["metadata"]["legends"]
        assert [bar["y"] for bar in bars] == [
            list(part) for part in zip(*heights.values(), strict=True)
        ]
        assert tab.locator(".xtick text", has_text=next(iter(heights))).count() > 0
    operations = plugin.ask("distributed/commops", RANKS)["data"]["host_0"]
    shown = [[row[0], *map(number, row[1:])] for row in cells(tab.locator(".gc table").first)]
    assert shown == operations["rows"]


def levels(node: dict[str, Any]) -> list[dict[str, Any]]:
    """What Diff has a bar for in a module: what is below it, else the module itself."""
    hidden = ("CompositeNodes", "aten::")
    below = [n for n in node["children"] if not n["left"]["name"].startswith(hidden)]
    return below if node["children"] else [node]


def test_a_click_on_a_bar_of_diff_opens_that_module(plugin: Plugin, tab: Page) -> None:
    asks: list[str] = []
    tab.on("request", lambda request: asks.append(request.url))
    tab.get_by_text("Diff", exact=True).click()
    tab.get_by_text("Baseline").first.wait_for()
    for side in (0, 3):
        with tab.expect_response(lambda answer: "/workers?" in answer.url):
            plugin.choose(side, TORCH)
        with tab.expect_response(lambda answer: "/spans?" in answer.url):
            plugin.choose(side + 1, "torch_0")
        plugin.choose(side + 2, "default")
    words = {"exp_run": TORCH, "exp_worker": "torch_0", "exp_span": "default"}
    nodes = levels(plugin.ask("diffnode", TORCH, **words))
    times = [node["left"]["total_duration"] for node in nodes]

    def heights() -> list[Any]:
        return [plot[0]["y"] for plot in plugin.plots("bar")[:1]]

    agree(tab, heights, [times])
    combo, diff = plugin.plots("bar")
    assert [trace["type"] for trace in combo] == ["bar", "bar", "scatter", "scatter"]
    assert combo[1]["y"] == times and combo[3]["y"][-1] == pytest.approx(sum(times))
    assert diff[0]["y"] == [0] * len(times)
    widest = max(range(len(times)), key=times.__getitem__)
    bars = tab.locator(".gc-plot").first.locator(".bars").first.locator(".point path")
    bars.nth(widest).hover(force=True)
    baseline = tooltip(tab).rsplit("\n", 1)[1]
    assert number(baseline.removeprefix("Baseline: ")) == pytest.approx(times[widest], abs=0.001)
    asks.clear()
    tab.mouse.down()
    tab.mouse.up()
    path = nodes[widest]["path"]
    inner = levels(plugin.ask("diffnode", TORCH, **words, path=path))
    agree(tab, heights, [[node["left"]["total_duration"] for node in inner]] if inner else [])
    assert any(f"path={path}" in url for url in asks)
    tab.get_by_role("button", name="Go Back", disabled=False).click()
    agree(tab, heights, [times])
