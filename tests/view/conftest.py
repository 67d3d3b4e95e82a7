"""One TensorBoard and one browser for all tests of this folder: they take seconds to start."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pytest

from tests import warm
from tests.report.browsing import chromium
from tests.trace.making import call, copy, kernel, note, op, step, write

from .making import NEXT_CALL, make_run
from .plugin_page import Plugin
from .serving import DEVICE, RANKS, RUN, TORCH, Shown, loaded, shown

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page, Route

PATIENCE_MS = 60_000  # only so that a broken test ends


def device_trace(path: Path) -> Path:
    """Three steps of 100 ms: 40 waiting, 5 copying, 30 in a matrix kernel, the rest other."""
    events = []
    for number in range(3):
        at, first, second = number * 100_000, 2 * number + 1, 2 * number + 2
        external = {"External id": 10 * number + 1}
        events += [
            step(number, at, 100_000),
            note(NEXT_CALL, at, 40_000),
            op("aten::to", at + 41_000, 6_000, **external),
            call("cudaMemcpyAsync", at + 41_000, 10, first),
            copy("Memcpy HtoD (Pageable -> Device)", at + 42_000, 5_000, first),
            op("aten::mm", at + 50_000, 200, **{"External id": 10 * number + 2}),
            call("cudaLaunchKernel", at + 50_000, 10, second),
            kernel("ampere_sgemm_128x64_nn", at + 50_100, 30_000, second),
        ]
        events[-5]["args"] |= external
        events[-4]["args"] |= external
        for event in events[-2:]:
            event["args"]["External id"] = 10 * number + 2
    return write(path, events)


def rank_traces(folder: Path) -> Path:
    folder.mkdir()
    for rank in range(2):
        events: list[dict[str, Any]] = []
        for number in range(2):
            at = number * 10_000
            gather = note("gloo:all_reduce", at + 5_000, 3_000 - 1_000 * rank)
            gather["args"] |= {"External id": 5 + number}
            events += [step(number, at, 10_000), op("aten::mm", at + 100, 4_000), gather]
        write(folder / f"host_{rank}.pt.trace.json", events, distributedInfo={"rank": rank})
    return folder


# A module in a module, three steps of it, with everything that the plugin has a view for.
TRAINING = """
import sys, torch
torch.set_num_threads(1)
model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Sequential(torch.nn.ReLU()))
with torch.profiler.profile(
    schedule=torch.profiler.schedule(wait=0, warmup=1, active=3),
    profile_memory=True, with_stack=True, record_shapes=True,
    on_trace_ready=lambda profile: profile.export_chrome_trace(sys.argv[1]),
) as profile:
    for _ in range(4):
        model(torch.ones(256, 64)).sum().backward()
        profile.step()
"""


@pytest.fixture(scope="session")
def here(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("served")
    make_run(folder / ".tdiag" / "runs" / RUN, start_unix_ns=1)
    device_trace(folder / DEVICE)
    rank_traces(folder / RANKS)
    script = tmp_path_factory.mktemp("training") / "train.py"
    script.write_text(TRAINING)
    done = warm.run([str(script), str(folder / TORCH)], folder, dict(os.environ))
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture(scope="session")
def page(here: Path) -> Iterator[Shown]:
    with shown(here, RUN, DEVICE, RANKS, TORCH) as page:
        loaded(page, 4)
        yield page


@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    """One for this folder: it takes more than a second to start."""
    with chromium() as started:
        yield started


@pytest.fixture(scope="module")
def tab(browser: Browser) -> Iterator[Page]:
    """A page that reaches nothing but this machine, with a storage of its own."""
    made = browser.new_page(viewport={"width": 1600, "height": 2400})
    made.set_default_timeout(PATIENCE_MS)
    made.route("**/*", _only_here)
    yield made
    made.close()


def _only_here(route: Route) -> None:
    if urlsplit(route.request.url).hostname == "127.0.0.1":
        route.continue_()
    else:
        route.abort()


@pytest.fixture(scope="module")
def noticed(tab: Page) -> list[str]:
    """What the page complained of, and whom it asked besides this machine."""
    found: list[str] = []
    tab.on("pageerror", lambda error: found.append(str(error)))
    tab.on("requestfailed", lambda request: found.append(request.url))
    return found


@pytest.fixture
def faults(noticed: list[str]) -> Iterator[list[str]]:
    """The same, since the test before."""
    yield noticed
    noticed.clear()


@pytest.fixture(scope="module")
def opened(tab: Page, page: Shown, noticed: list[str]) -> Plugin:
    """Loading it takes two seconds of CPU time: once a file, whose tests begin with ``show``."""
    return Plugin(tab, page)


@pytest.fixture
def plugin(opened: Plugin, faults: list[str]) -> Iterator[Plugin]:
    yield opened
    assert faults == []
