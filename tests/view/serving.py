"""`tdiag view` as a user runs it, in a terminal of its own, and questions to its server."""

from __future__ import annotations

import json
import re
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from tests.launch.harness import TDIAG, Terminal, wait_for

RUN, DEVICE, RANKS, TORCH = (
    "some-run",
    "device.json",
    "job",
    "torch.json",
)  # what the one server shows
PLUGIN = "data/plugin/pytorch_profiler"


class Shown:
    """``text``: what the command said; ``ask`` gets JSON from TensorBoard."""

    def __init__(self, text: str) -> None:
        self.text = text
        found = re.search(r"http://127\.0\.0\.1:\d+/", text)
        assert found, text
        self.url = found[0]

    def ask(self, path: str, **words: str) -> Any:
        query = f"?{urlencode(words)}" if words else ""
        with urllib.request.urlopen(f"{self.url}{path}{query}") as answer:
            return json.loads(answer.read())

    def plugin(self, path: str, run: str, worker: str, **words: str) -> Any:
        return self.ask(f"{PLUGIN}/{path}", run=run, worker=worker, span="default", **words)

    def overview(self, run: str, worker: str) -> dict[str, float]:
        """The Overview's parts of the average step, ms."""
        (total,) = self.plugin("overview", run, worker)["performance"]
        parts = {part["name"]: part["value"] / 1e3 for part in total["children"]}
        return parts | {"step": total["value"] / 1e3}


@contextmanager
def shown(cwd: Path, *words: str) -> Iterator[Shown]:
    """Serve until the plugin has read everything; then press Ctrl-C and see it all gone."""
    terminal = Terminal([*TDIAG, "view", "--no-browser", *words], cwd)
    try:
        terminal.read("Ctrl-C ends it.")
        page = Shown(terminal.text)
        left = serving(terminal.process.pid)
        assert left
        yield page
        terminal.interrupt()
        assert terminal.end() == 0
        assert "Traceback" not in terminal.text
        wait_for(lambda: not any(Path(f"/proc/{pid}").exists() for pid in left))
    finally:
        terminal.kill()


def loaded(page: Shown, runs: int) -> None:
    def done() -> bool:
        told = page.ask(f"{PLUGIN}/runs")
        return len(told["runs"]) == runs and not told["loading"]

    wait_for(done)


def serving(parent: int) -> set[int]:
    """The process's descendants."""
    found, new = set(), {parent}
    while new:
        listed = (Path(f"/proc/{pid}/task").glob("*/children") for pid in new)
        new = {int(pid) for files in listed for path in files for pid in path.read_text().split()}
        found |= new
    return found
