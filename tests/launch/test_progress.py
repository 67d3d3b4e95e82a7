"""Progress is read from event files while they grow."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tdiag.launch.progress import Progress


class Events:
    def __init__(self, folder: Path, pid: int = 7) -> None:
        (folder / "events").mkdir(exist_ok=True)
        self.path = folder / "events" / f"{pid}.jsonl"

    def raw(self, text: str) -> None:
        with self.path.open("a") as file:
            file.write(text)

    def write(self, kind: str, **fields: Any) -> None:
        self.raw(json.dumps({"kind": kind, **fields}) + "\n")

    def window(self, name: str, state: str, step: int, t: int) -> None:
        self.write("window", t=t, name=name, state=state, step=step, **{"pass": 1})

    def steps(self, first: int, last: int, each: int = 10) -> None:
        for i in range(first, last + 1):
            self.write(
                "steps", i=i, n=1, s=i * each, t=(i + 1) * each, w="x", m=[12, (i + 1) * each, 0]
            )


@pytest.fixture
def events(tmp_path: Path) -> Events:
    return Events(tmp_path)


def test_steps_window_and_step_time_follow_the_file(events: Events, tmp_path: Path) -> None:
    progress = Progress(tmp_path)
    progress.look()
    assert progress.lead() is None
    events.write("torch", version="2.13.0")
    events.steps(0, 2, each=1000)
    events.window("baseline", "begin", 3, 3000)
    progress.look()
    lead = progress.lead()
    assert lead is not None and (lead.steps, lead.window, lead.torch) == (3, "baseline", "2.13.0")
    assert lead.clean_step_ns is None
    events.write("steps", i=3, n=2, s=3000, t=3030, m=[12, 3010, 0, 12, 3030, 0])
    progress.look()
    assert (lead.steps, lead.clean_step_ns) == (5, 15)


def test_the_last_step_before_a_windows_end_counts_and_those_after_it_do_not(
    events: Events, tmp_path: Path
) -> None:
    events.window("baseline", "begin", 0, 0)
    events.steps(0, 9)
    events.window("baseline", "end", 10, 100)
    events.steps(10, 20, each=1000)
    progress = Progress(tmp_path)
    progress.look()
    lead = progress.lead()
    assert lead is not None and (lead.clean_step_ns, lead.window, lead.steps) == (10, "", 21)


def test_a_torn_line_waits_for_its_rest(events: Events, tmp_path: Path) -> None:
    progress = Progress(tmp_path)
    events.raw('{"kind":"bound')
    progress.look()
    events.raw('ary","t":1,"source":"optimizer"}\n{"kind":"finish","t":2,"why":"exit"}\nnot json\n')
    events.raw('{"kind":"window"}\n')
    events.steps(0, 0)
    progress.look()
    lead = progress.lead()
    assert lead is not None and (lead.boundary, lead.finish) == ("optimizer", "exit")


def test_the_lead_is_the_training_process_with_most_steps(tmp_path: Path) -> None:
    launcher, slow, fast, worker = (Events(tmp_path, pid) for pid in range(1, 5))
    launcher.write("torch", version="2.13.0")
    worker.write("role", role="worker", tid=4)
    slow.steps(0, 3)
    fast.steps(0, 5)
    progress = Progress(tmp_path)
    progress.look()
    lead = progress.lead()
    assert lead is not None and lead.file.path == str(fast.path)
    assert progress.torch_seen()
