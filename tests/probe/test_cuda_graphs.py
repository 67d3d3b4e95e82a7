"""A step that was captured into a CUDA graph: Python calls nothing but ``replay``."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from tdiag.evidence.steps import Steps
from tdiag.probe.boundary import BATCHES_BEFORE_THEY_COUNT
from tests.simulated.device import SimulatedCuda
from tests.simulated.loop import Loop

MS = 1_000_000


class Training:
    """Warms up, captures a step, and replays it, as PyTorch's documentation has it. ``kernels``:
    launched in a step, 0.5 ms each."""

    def __init__(self, cuda: SimulatedCuda, kernels: int = 60) -> None:
        self.cuda, self.kernels = cuda, kernels
        self.model = torch.nn.Linear(4, 1)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01)
        self.graph: Any = torch.cuda.CUDAGraph()

    def step(self, update: bool = True) -> None:
        for _ in range(self.kernels):
            self.cuda.launch(MS // 2)
        self.optimizer.zero_grad()
        self.model(torch.ones(2, 4)).mean().backward()
        if update:
            self.optimizer.step()

    def capture(self, update: bool = True) -> None:
        self.graph.capture_begin()
        try:
            self.step(update)
        finally:
            self.graph.capture_end()


@pytest.fixture
def loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Loop]:
    """With the real optimizer, backward and graph watched."""
    made = Loop(tmp_path, monkeypatch, lambda cuda: None, windows=["baseline", "ops"])
    made.boundary.install()
    yield made
    made.probe.patches.undo()


def test_a_replay_of_a_captured_step_ends_a_step(loop: Loop) -> None:
    training = Training(loop.cuda)
    for _ in range(3):
        training.step()
    training.capture()
    before = loop.probe.step
    for _ in range(50):
        training.graph.replay()
    assert loop.probe.step == before + 50
    for _ in range(200):
        training.graph.replay()
    run = loop.written()
    assert [r["why"] for r in run.of("finish")] == ["complete"]
    steps = run.evidence().get(Steps)
    assert steps is not None and steps.mean_ns / (30 * MS) == pytest.approx(1.0, abs=0.01)
    assert run.of("failure") == []


def test_nothing_is_done_between_steps_while_a_graph_is_captured(loop: Loop) -> None:
    """Steps end inside the capture; the simulated device fails on any synchronisation there."""
    training = Training(loop.cuda)
    for _ in range(3):
        training.step()
    before, written = loop.probe.step, len(loop.written().of("window"))
    training.graph.capture_begin()
    for _ in range(20):
        training.step()
    training.graph.capture_end()
    assert loop.probe.step == before
    assert len(loop.written().of("window")) == written
    assert loop.written().of("failure") == []


def test_a_capture_that_only_the_device_tells_of_is_left_alone_too(loop: Loop) -> None:
    training = Training(loop.cuda)
    for _ in range(3):
        training.step()
    written = len(loop.written().of("window"))
    loop.cuda.capturing = True  # by a library, past torch.cuda.CUDAGraph
    for _ in range(20):
        training.step()
    assert len(loop.written().of("window")) == written
    assert loop.written().of("failure") == []


def test_a_graph_without_the_update_ends_no_step(loop: Loop) -> None:
    training = Training(loop.cuda)
    for _ in range(3):
        training.step()
    training.capture(update=False)
    before = loop.probe.step
    for _ in range(10):
        training.graph.replay()
        training.optimizer.step()
    assert loop.probe.step == before + 10


def test_where_replays_are_not_seen_batches_are_steps(loop: Loop) -> None:
    training = Training(loop.cuda)
    for _ in range(3):
        training.step()
    training.capture()
    for _ in range(BATCHES_BEFORE_THEY_COUNT + 11):
        loop.boundary.batches += 1
        loop.boundary.batch()
    assert [r["source"] for r in loop.written().of("boundary")] == [
        "backward",
        "optimizer",
        "batch",
    ]
    assert loop.probe.step == 10


def test_a_graph_that_is_captured_and_not_used_changes_nothing(loop: Loop) -> None:
    training = Training(loop.cuda)
    for _ in range(3):
        training.step()
    training.capture()
    before = loop.probe.step
    for _ in range(3 * BATCHES_BEFORE_THEY_COUNT):
        loop.boundary.batches += 1
        if loop.boundary.unreplayed is not None:
            loop.boundary.batch()
        training.step()
    assert loop.probe.step == before + 3 * BATCHES_BEFORE_THEY_COUNT
