"""A start-up that lasts is sampled until the first step."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tdiag.launch import starting
from tdiag.launch.progress import Progress
from tdiag.launch.starting import StartupSampler
from tests.launch.harness import wait_for
from tests.launch.test_progress import Events
from tests.sample.test_pyspy import fake


@pytest.fixture
def sampler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StartupSampler:
    (tmp_path / "control").mkdir()
    monkeypatch.setattr(starting, "BEGIN_AFTER_S", 0.2)
    sampler = StartupSampler(tmp_path, Progress(tmp_path))
    sampler.program = fake(
        tmp_path,
        'for w; do out=$w; done; trap \'echo "$*" > "$out"; exit\' INT; echo Sampling process;'
        " while :; do sleep 0.05; done",
    )
    return sampler


def begin(folder: Path) -> Events:
    events = Events(folder)
    events.write("process", t=time.perf_counter_ns())
    return events


def looked(sampler: StartupSampler) -> None:
    sampler.progress.look()
    sampler.tick()


def test_it_is_sampled_until_the_first_step(sampler: StartupSampler, tmp_path: Path) -> None:
    events = begin(tmp_path)
    looked(sampler)
    assert not sampler.live  # it may be short
    time.sleep(0.3)
    wait_for(lambda: looked(sampler) or sampler.answered)
    events.write("boundary", t=1, source="optimizer")
    stacks = tmp_path / "startup-stacks-7.speedscope.json"
    wait_for(lambda: sampler.tick() or stacks.exists())
    assert "--rate 20" in stacks.read_text() and sampler.over


def test_a_short_one_is_left_alone(sampler: StartupSampler, tmp_path: Path) -> None:
    begin(tmp_path).write("boundary", t=1, source="optimizer")
    time.sleep(0.3)
    looked(sampler)
    assert sampler.over and not sampler.seen


def test_a_program_that_never_trains_is_not_sampled_for_ever(
    sampler: StartupSampler, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(starting, "MOST_S", 0.3)
    begin(tmp_path)
    time.sleep(0.3)
    wait_for(lambda: looked(sampler) or sampler.answered)
    wait_for(lambda: looked(sampler) or not sampler.live)
    assert sampler.over and (tmp_path / "startup-stacks-7.speedscope.json").exists()
