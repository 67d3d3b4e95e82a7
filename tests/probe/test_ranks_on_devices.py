"""Ranks whose hosts are many steps apart agree on one step that all still have before them."""

from __future__ import annotations

import json
import subprocess
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tdiag.probe.capture.trace import TraceCapture
from tdiag.probe.control import POLL_NS, Agreement, Joint, StopSign
from tests.simulated.ranks import DEPTH, Job


@pytest.mark.parametrize("ranks", [2, 4])
def test_all_ranks_stop_at_the_same_step(
    ranks: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = Job(tmp_path, ranks, monkeypatch)
    job.probes[0].config["steps"] = 30
    signs = [StopSign(probe) for probe in job.probes]  # type: ignore[arg-type]
    ahead: list[int] = []
    finished: set[int] = set()

    def ended(probe: Any) -> bool:
        """As windows.py does at the end of each step."""
        sign = signs[probe.rank]
        if probe.rank not in finished and sign.due(0, 0, probe.step):
            finished.add(probe.rank)
            if probe.leads:
                ahead.append(max(p.step for p in job.probes) - probe.step)
            sign.arrange()
        return probe.rank in finished and sign.now()

    stopped = job.train(ended)
    assert ahead[0] >= DEPTH - 1
    assert len(set(stopped)) == 1 and 30 + DEPTH < stopped[0] < 500
    assert job.hung == []


def test_all_ranks_trace_the_same_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = Job(tmp_path, 2, monkeypatch)
    traced: dict[int, list[int]] = {0: [], 1: []}

    class Trace:
        def __init__(self, window: Any) -> None:
            self.window = window

        def start(self) -> str:
            return ""

        def skipped(self, why: str) -> None:
            traced[1].append(-1)

        def begin(self) -> None:
            traced[1].append(job.probes[1].step)

        def step(self) -> None: ...

        def end(self, steps: int) -> None:
            traced[1].append(job.probes[1].step)

    joints = [Joint(p, lambda window, stacks: Trace(window)) for p in job.probes]  # type: ignore[arg-type]

    def ended(probe: Any) -> bool:
        joint = joints[probe.rank]
        if probe.rank:
            joint.follow(probe.step * POLL_NS)
        elif probe.step == 30:
            joint.announce(2, 3, stacks=False)
        elif probe.step > 30 and joint.ready() and len(traced[0]) < 4:
            traced[0].append(probe.step)
        return bool(probe.step == 120)

    job.train(ended)
    begin, *_, end = traced[0]
    assert end == begin + 3
    assert traced[1] == [begin, end]


def test_a_trace_that_the_lead_gives_up_keeps_nobody_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = Job(tmp_path, 2, monkeypatch)
    asked, other = (Agreement(probe, "trace-at") for probe in job.probes)  # type: ignore[arg-type]
    job.here.rank = 1
    asked.ask(steps=3)
    assert other.look() is None and other.open
    asked.withdraw()
    assert other.look() is None and not other.open


def test_a_rank_that_never_answers_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = Job(tmp_path, 2, monkeypatch)
    lead = Agreement(job.probes[0], "stop-at")  # type: ignore[arg-type]
    job.here.rank = 0
    lead.ask()
    assert not lead.reached() and lead.at is None
    assert lead.question is not None
    lead.question["id"] -= 10**10  # asked ten seconds ago
    assert not lead.reached() and lead.at is not None


def test_a_rank_that_does_not_see_the_directory_is_not_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is on another machine: a trace of the others need not wait for it."""
    job = Job(tmp_path, 2, monkeypatch)
    (tmp_path / "control" / "rank-1").unlink()
    lead = Agreement(job.probes[0], "trace-at")  # type: ignore[arg-type]
    job.here.rank = 0
    lead.ask()
    assert not lead.reached() and lead.at is not None


def test_a_rank_that_is_gone_is_not_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was one of an earlier job below the same tdiag."""
    job = Job(tmp_path, 2, monkeypatch)
    gone = subprocess.Popen(["true"])
    gone.wait()
    (tmp_path / "control" / "rank-1").write_text(json.dumps({"pid": gone.pid}))
    job.probes[0].written.clear()
    sign = StopSign(job.probes[0])  # type: ignore[arg-type]
    sign.arrange()
    assert [record["absent"] for record in job.probes[0].written] == [1]


@pytest.mark.parametrize("question", ["stop-at", "trace-at"])
def test_what_an_earlier_job_agreed_on_holds_for_it_alone(
    question: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else one rank of a job that torchrun started again would stop alone, and the others hang."""
    job = Job(tmp_path, 2, monkeypatch)
    lead, other = (Agreement(probe, question) for probe in job.probes)  # type: ignore[arg-type]
    job.here.rank = 1
    lead.ask(at=30)
    job.probes[1].began_ns = time.perf_counter_ns()
    assert other.look() is None and other.at is None
    lead.ask(at=40)
    assert other.look() is not None and other.at == 40


def test_a_trace_that_the_script_ends_is_withdrawn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The script starts a profiler of its own before all ranks have answered."""
    job = Job(tmp_path, 2, monkeypatch)
    joint = Joint(job.probes[0], lambda *_: None)  # type: ignore[arg-type]
    windows: Any = SimpleNamespace(probe=job.probes[0], boundary=None, inspection=None, joint=joint)
    capture = TraceCapture(windows, SimpleNamespace(number=1, steps=1))  # type: ignore[arg-type]
    job.probes[0].profiler_prepared = False
    assert capture.start() == ""
    assert (tmp_path / "control" / "trace-at").exists()
    capture.abort()
    assert not (tmp_path / "control" / "trace-at").exists()
