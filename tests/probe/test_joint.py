"""Ranks trace the same steps: whoever waits for whom is slowed alike."""

from __future__ import annotations

import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tdiag.probe.capture.trace import TraceCapture
from tdiag.probe.control import POLL_NS, Joint, StopSign, arrive
from tests import warm

from .harness import environment

CODE = """
import time
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
model = DistributedDataParallel(torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
while True:
    time.sleep(0.01)
    optimizer.zero_grad()
    model(torch.randn(8, 4)).mean().backward()
    optimizer.step()
"""


def records(run_dir: Path, kind: str) -> dict[str, list[dict[str, Any]]]:
    """By the process that wrote them."""
    lines = {
        path.stem: [json.loads(line) for line in path.read_text().splitlines()]
        for path in (run_dir / "events").iterdir()
    }
    kept = {pid: [r for r in written if r["kind"] == kind] for pid, written in lines.items()}
    return {pid: found for pid, found in kept.items() if found}


def traced_steps(path: Path) -> set[str]:
    names = {str(event.get("name", "")) for event in json.loads(path.read_text())["traceEvents"]}
    return {name for name in names if name.startswith("ProfilerStep#")}


@pytest.mark.training
def test_both_ranks_trace_the_same_steps_in_each_pass(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(CODE)
    run_dir = tmp_path / "run"
    base = {**os.environ, "OMP_NUM_THREADS": "1"}
    env = environment(run_dir, base, windows=["baseline", "trace"], profiling=True)
    ranks = warm.run_ranks(["script.py"], tmp_path, env)
    assert [rank.returncode for rank in ranks] == [0, 0], ranks[0].stderr + ranks[1].stderr
    found = records(run_dir, "trace")
    assert len(found) == 2
    one, other = found.values()
    assert [r["pass"] for r in one] == [r["pass"] for r in other] == [1, 2]
    for mine, theirs in zip(one, other, strict=True):
        steps = traced_steps(run_dir / mine["file"])
        assert steps == traced_steps(run_dir / theirs["file"])
        assert len(steps) == mine["steps"] == theirs["steps"] == (1 if mine["pass"] == 1 else 3)
    assert not records(run_dir, "failure")


class Recorder:
    def __init__(self) -> None:
        self.written: list[dict[str, Any]] = []

    def write(self, kind: str, **fields: Any) -> None:
        self.written.append({"kind": kind, **fields})


@pytest.fixture
def joints(tmp_path: Path) -> tuple[Joint, Joint]:
    """Of the lead and the other rank of two, at step 40."""
    (tmp_path / "control").mkdir()

    def joint(rank: int) -> Joint:
        probe: Any = SimpleNamespace(
            run_dir=str(tmp_path), step=40, ranks=2, rank=rank, began_ns=0, recorder=Recorder(),
            guard=lambda f: f,
        )  # fmt: skip
        windows: Any = SimpleNamespace(probe=probe, boundary=None, inspection=None)
        arrive(probe)
        return Joint(probe, lambda window, stacks: TraceCapture(windows, window, stacks))

    return joint(0), joint(1)


def test_it_begins_after_a_step_that_both_have_before_them(joints: tuple[Joint, Joint]) -> None:
    lead, other = joints
    other.probe.step = 57  # its host has run ahead
    lead.announce(2, 3, stacks=False)
    assert not lead.ready() and lead.agreement.at is None
    assert other.follow(POLL_NS)  # it answers
    assert not lead.ready()
    assert lead.agreement.at is not None and lead.agreement.at > 57


def stop_sign(tmp_path: Path, rank: int, ranks: int = 3) -> StopSign:
    probe: Any = SimpleNamespace(
        run_dir=str(tmp_path), step=40, ranks=ranks, rank=rank, leads=rank == 0, began_ns=0,
        recorder=Recorder(), config={"profiling": True}, left=False,
    )  # fmt: skip
    probe.detach = lambda: setattr(probe, "left", True)
    return StopSign(probe)


def test_no_rank_stops_where_one_does_not_see_the_directory(tmp_path: Path) -> None:
    """Ranks on another machine would fail for want of those that stopped."""
    (tmp_path / "control").mkdir()
    lead, other = stop_sign(tmp_path, 0), stop_sign(tmp_path, 1)
    arrive(other.probe)
    lead.arrange()
    assert lead.probe.recorder.written[0]["absent"] == 1  # type: ignore[attr-defined]
    assert other.due(10 * POLL_NS, 0, 40)
    for sign in (lead, other):
        assert not sign.now()
        assert sign.probe.left  # type: ignore[attr-defined]


def test_all_stop_where_all_see_it(tmp_path: Path) -> None:
    (tmp_path / "control").mkdir()
    signs = [stop_sign(tmp_path, rank) for rank in range(3)]
    for sign in signs:
        arrive(sign.probe)
    signs[0].arrange()
    assert not signs[0].now()  # nobody has answered
    for other in signs[1:]:
        assert not other.due(10 * POLL_NS, 0, 40)  # it answers
    assert not signs[0].now()
    for sign in signs:
        sign.probe.step = 100
        assert sign.due(20 * POLL_NS, 0, 100) or sign is signs[0]
        assert sign.now() and not sign.probe.left  # type: ignore[attr-defined]


def test_one_rank_alone_announces_nothing(joints: tuple[Joint, Joint]) -> None:
    joint = joints[0]
    joint.probe.ranks = 1
    joint.announce(2, 3, stacks=False)
    assert joint.ready()
    assert not Path(joint.agreement.file).exists()


def test_a_rank_that_hears_too_late_says_so_once(joints: tuple[Joint, Joint]) -> None:
    lead, other = joints
    lead.announce(2, 3, stacks=False)
    other.follow(POLL_NS)
    lead.ready()
    other.probe.step = 10**6
    assert other.follow(2 * POLL_NS)
    assert not other.follow(3 * POLL_NS)
    written = other.probe.recorder.written  # type: ignore[attr-defined]
    assert [(r["state"], r["why"], r["pass"]) for r in written] == [
        ("skipped", "it was announced too late", 2)
    ]


def test_a_file_that_is_half_there_is_looked_at_again(joints: tuple[Joint, Joint]) -> None:
    joint = joints[1]
    Path(joint.agreement.file).write_text('{"pass": 2, "a')
    assert not joint.follow(POLL_NS)
    assert joint.capture is None
