"""TensorBoard itself, asked over HTTP: what the plugin makes of the copies agrees with tdiag."""

from __future__ import annotations

import os
import re
import signal
import socket
import urllib.request
from pathlib import Path

import pytest

from tdiag.diagnose import diagnose
from tdiag.evidence.from_run import load_run
from tdiag.evidence.from_trace.trace_files import read_file
from tdiag.model.diagnosis import Diagnosis
from tests.launch.harness import TDIAG, Terminal, tdiag, wait_for

from .serving import DEVICE, PLUGIN, RANKS, RUN, TORCH, Shown, serving


def test_every_run_and_rank_is_a_run_of_tensorboard(page: Shown) -> None:
    runs = page.ask("data/runs")
    assert set(runs) == {RUN, DEVICE, RANKS, f"{RANKS}/rank 0", f"{RANKS}/rank 1", TORCH}
    assert page.ask(f"{PLUGIN}/runs")["runs"] == sorted([RUN, DEVICE, RANKS, TORCH])
    workers = page.ask(f"{PLUGIN}/workers", run=RANKS, view="Overview")
    assert workers == ["host_0", "host_1"]


def test_scalars_and_texts_are_served(page: Shown) -> None:
    tags = page.ask("data/plugin/scalars/tags")
    assert {"step/clean ms", "budget/forward ms", "system/cores in use"} <= set(tags[RUN])
    points = page.ask("data/plugin/scalars/scalars", run=RUN, tag="step/clean ms")
    assert [value for _, _, value in points] == [30.0] * 30
    (text,) = page.ask("data/plugin/text/text", run=RUN, tag="report/00 verdict")
    assert "<h3>" in text["text"] and "&lt;" not in text["text"]


def test_overview_of_a_run_shows_the_wait_for_data(page: Shown, here: Path) -> None:
    diagnosis = diagnose(load_run(here / ".tdiag" / "runs" / RUN))
    found = page.overview(RUN, "host_100")
    waited = sum(c.ns for c in diagnosis.budget if c.component.startswith("data_wait"))
    assert diagnosis.step
    share = waited / diagnosis.step.mean_ns
    assert share == pytest.approx(4 / 30)
    # The step's span opens 0.2 ms late, and the call lies 20 µs inside its marks.
    assert found["DataLoader"] / found["step"] == pytest.approx(share, abs=0.005)
    table = page.plugin("operation/table", RUN, "host_100", group_by="Operation")["data"]
    assert {row["name"]: row["calls"] for row in table}["aten::linear"] == 2


@pytest.fixture(scope="module")
def device(here: Path) -> Diagnosis:
    return diagnose(read_file(here / DEVICE).evidence)


def test_overview_of_a_device_is_the_budget(page: Shown, device: Diagnosis) -> None:
    budget = {part.component: part.ns / 1e6 for part in device.budget}
    found = page.overview(DEVICE, "device_0")
    assert found["step"] == pytest.approx(100)
    assert found["Kernel"] == pytest.approx(budget["compute"]) == pytest.approx(30)
    assert found["Memcpy"] == pytest.approx(budget["h2d"]) == pytest.approx(5)
    assert found["DataLoader"] == pytest.approx(budget["data_wait"])
    assert found["Runtime"] + found["CPU Exec"] == pytest.approx(budget["launch"])
    assert found["Other"] == pytest.approx(budget["other"])


def test_operator_and_kernel_views_have_the_devices_time(page: Shown, device: Diagnosis) -> None:
    rows = page.plugin("operation/table", DEVICE, "device_0", group_by="Operation")["data"]
    found = {row["name"]: row for row in rows}
    assert found["aten::mm"]["device_total_duration"] == pytest.approx(3 * 30_000)
    table = page.plugin("kernel/table", DEVICE, "device_0", group_by="Kernel")["data"]
    total = {row[0]: row for row in table["rows"]}["ampere_sgemm_128x64_nn"]
    names = [column["name"] for column in table["columns"]]
    assert total[names.index("Calls")] == 3
    assert total[names.index("Total Duration (us)")] == pytest.approx(3 * 30_000)
    (compute,) = (part.ns for part in device.budget if part.component == "compute")
    assert total[names.index("Mean Duration (us)")] == pytest.approx(compute / 1e3)


def test_the_distributed_view_sees_both_ranks(page: Shown) -> None:
    assert "Distributed" in page.ask(f"{PLUGIN}/views", run=RANKS)
    waits = page.plugin("distributed/waittime", RANKS, "All")["data"]
    assert waits["all"] == {"host_0": [2000, 1000], "host_1": [2000, 0]}  # transfer, waiting, µs


def test_the_originals_are_untouched_and_the_runs_view_is_kept(page: Shown, here: Path) -> None:
    run = here / ".tdiag" / "runs" / RUN
    assert [p.name for p in (run / "tensorboard").iterdir()] == [
        "host_100.1700000003000.pt.trace.json"
    ]
    assert (run / "view" / RUN / "host_100.pt.trace.json.gz").is_file()
    assert sorted(p.name for p in here.iterdir()) == [".tdiag", DEVICE, RANKS, TORCH]


def scripts(url: str) -> list[str]:
    """Those that the plugin's page asks for."""
    with urllib.request.urlopen(f"{url}{PLUGIN}/index.html") as answer:
        head = answer.read().decode().partition("</head>")[0]
    return re.findall(r'<script src="([^"]*)"', head)


def test_it_opens_the_browser_and_kill_ends_it_with_all_its_children(
    here: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Google's charts are asked for where that was wanted."""
    browser = tmp_path / "browser"
    browser.write_text(f'#!/bin/sh\necho "$1" > {tmp_path}/asked\n')
    browser.chmod(0o755)
    monkeypatch.setenv("BROWSER", str(browser))
    terminal = Terminal([*TDIAG, "view", "--google-charts", str(here / DEVICE)], here)
    try:
        terminal.read("Ctrl-C ends it.")  # the plugin is still reading
        loader, stand_in = scripts(Shown(terminal.text).url)
        assert loader.startswith("https://") and stand_in == "charts.js"
        asked = tmp_path / "asked"
        wait_for(lambda: asked.exists() and asked.read_text())
        left = serving(terminal.process.pid)
        os.kill(terminal.process.pid, signal.SIGTERM)
        assert terminal.end() == 0
        wait_for(lambda: not any(Path(f"/proc/{pid}").exists() for pid in left))
        assert asked.read_text().strip() in terminal.text
    finally:
        terminal.kill()


def test_tensorboard_ends_with_tdiag_that_is_killed_while_it_starts(here: Path) -> None:
    terminal = Terminal([*TDIAG, "view", "--no-browser", str(here / DEVICE)], here)
    left: set[int] = set()

    def started() -> bool:
        found = serving(terminal.process.pid)
        left.update(p for p in found if b"tdiag.view.charts" in command_line(p))
        return bool(left)

    try:
        wait_for(started)
        os.kill(terminal.process.pid, signal.SIGKILL)
        terminal.end()
        wait_for(lambda: not any(map(command_line, left)))
    finally:
        terminal.kill()
        for pid in filter(command_line, left):
            os.kill(pid, signal.SIGKILL)


def command_line(pid: int) -> bytes:
    """Empty for a process that has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def test_a_port_that_is_taken_is_refused(here: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        done = tdiag("view", str(here / DEVICE), "--no-browser", "--port", str(port), cwd=here)
    assert (done.returncode, done.stdout) == (2, "")
    assert (
        f"port {port} cannot be used: Address already in use" in done.stderr
        and "Traceback" not in done.stderr
    )


@pytest.mark.parametrize("words", [["no-such-run"], ["--perfetto", DEVICE], ["--speedscope"]])
def test_what_cannot_be_shown_is_said(words: list[str], here: Path) -> None:
    done = tdiag("view", "--no-browser", *words, cwd=here)
    assert done.returncode == 2
    assert done.stdout == "" and done.stderr.startswith("tdiag: ")
    assert done.stderr.count("\n") == 2 and "Traceback" not in done.stderr


def test_perfetto_writes_a_file_and_says_how_to_open_it(here: Path) -> None:
    done = tdiag("view", "--perfetto", RUN, cwd=here)
    assert (done.returncode, done.stderr) == (0, "")
    path, *how = done.stdout.splitlines()
    assert (here / path).is_file() and path.endswith(f"{RUN}/trace.perfetto.json.gz")
    assert "ui.perfetto.dev" in how[0] and "offline" in how[1]


def test_google_charts_are_not_asked_for_otherwise(page: Shown) -> None:
    assert scripts(page.url) == ["charts.js"]
