"""The machine over the whole run: one value an interval between two samples."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tdiag.evidence.from_run import load_run
from tdiag.evidence.machine import Strip, SystemHistory
from tdiag.evidence.steps import StepHistory, Steps

from .making import TRAIN, Run, loader, plain
from .test_system import MACHINE, SECOND


def sample(t: int, procs: dict[str, list[int | None]], **more: Any) -> dict[str, Any]:
    return {"kind": "sample", "t": t, "procs": procs, "busy_ns": 6 * t, "gpus": None} | more


def history_of(
    folder: Path, *samples: dict[str, Any], cpus_allowed: int | None = None, **machine: Any
) -> SystemHistory | None:
    """Of a run that took no step, unless its process is to be known."""
    run = Run(folder)
    if cpus_allowed:
        run.add("torch", cpus_allowed=cpus_allowed)
        run.steps(2, plain)
    lines = "".join(json.dumps(line) + "\n" for line in (MACHINE | machine, *samples))
    (folder / "system.jsonl").write_text(lines + '{"kind":"sam')
    return load_run(run.write()).get(SystemHistory)


def strip(history: SystemHistory | None, name: str) -> Strip:
    assert history is not None
    return next(strip for strip in history.strips if strip.name == name)


def test_use_is_the_counters_difference_over_the_interval(tmp_path: Path) -> None:
    found = history_of(
        tmp_path,
        sample(0, {"1": [5 * SECOND, 100, 1000]}),
        sample(2 * SECOND, {"1": [6 * SECOND, 300, 5000]}),
        sample(3 * SECOND, {"1": [9 * SECOND, 200, 5000]}),
    )
    assert found is not None
    assert found.t_ns == (0, 2 * SECOND, 3 * SECOND)
    assert strip(found, "cores").values == (0.5, 3.0)
    assert strip(found, "cores, all processes").values == (6.0, 6.0)
    assert strip(found, "disk read").values == (2000.0, 0.0)
    assert strip(found, "memory").values == (300, 200)
    limits = [strip(found, name).limit for name in ("cores", "cores, all processes", "memory")]
    assert limits == [4.0, 8, 16 << 30]


def test_a_new_process_began_at_zero_and_one_that_ended_takes_nothing_back(tmp_path: Path) -> None:
    found = history_of(
        tmp_path,
        sample(0, {"1": [7 * SECOND, 10, 0]}),
        sample(SECOND, {"1": [7 * SECOND, 10, 0], "2": [SECOND // 2, 30, 64]}),
        sample(2 * SECOND, {"1": [8 * SECOND, 10, 0]}),
        sample(3 * SECOND, {"1": [8 * SECOND, 10, 0], "2": [SECOND, 30, 64]}),  # was not read once
    )
    assert strip(found, "cores").values == (0.5, 1.0, 0.5)
    assert strip(found, "disk read").values == (64.0, 0.0, 0.0)


def test_what_the_system_does_not_tell_is_none(tmp_path: Path) -> None:
    found = history_of(
        tmp_path, sample(0, {"1": [0, 10, None]}), sample(SECOND, {"1": [0, 10, None]})
    )
    assert strip(found, "disk read").values == (None,)


def test_the_narrower_affinity_is_the_limit(tmp_path: Path) -> None:
    samples = [sample(t * SECOND, {"1": [0, 10, 0]}) for t in range(2)]
    assert strip(history_of(tmp_path, *samples, cpus_allowed=2), "cores").limit == 2


def test_every_gpu_that_was_used_has_its_strips(tmp_path: Path) -> None:
    def gpus(used: float | None) -> list[dict[str, Any]]:
        busy = [{"index": i, "util": used, "memory_used": 7 + i} for i in (1, 2)]
        return [{"index": 0, "util": 0.0, "memory_used": 1}, *busy]

    cards = [{"index": i, "memory_total": 80} for i in range(3)]
    found = history_of(
        tmp_path,
        *(sample(t * SECOND, {}, gpus=gpus(u)) for t, u in enumerate((0.9, 0.25, None))),
        gpus=cards,
    )
    assert found is not None
    assert [s.name for s in found.strips if s.name.startswith("GPU")] == [
        "GPU 1 use", "GPU 1 memory", "GPU 2 use", "GPU 2 memory",
    ]  # fmt: skip
    assert strip(found, "GPU 1 use").values == (0.25, None)
    assert strip(found, "GPU 2 memory").values == (9, 9)
    assert strip(found, "GPU 2 memory").limit == 80
    assert found.no_gpu == ""


def test_why_there_is_no_gpu_is_kept(tmp_path: Path) -> None:
    samples = [sample(t * SECOND, {"1": [0, 10, 0]}) for t in range(2)]
    found = history_of(tmp_path, *samples, gpus=None, gpus_missing="NVML: no library")
    assert found is not None
    assert found.no_gpu == "NVML: no library"
    assert not any(s.name.startswith("GPU") for s in found.strips)


@pytest.mark.parametrize("count", [0, 1])
def test_two_samples_are_needed(tmp_path: Path, count: int) -> None:
    assert history_of(tmp_path, *[sample(5, {"1": [0, 1, 0]})] * count) is None
    assert history_of(tmp_path, *[sample(5, {"1": [0, 1, 0]})] * 2) is None  # of one moment


def traced(run: Run, count: int) -> None:
    run.open("trace", 2)
    for number in range(count):
        plain(run, number)
        run.end()


def test_every_step_keeps_its_window_and_whether_it_is_judged(tmp_path: Path) -> None:
    run = Run(tmp_path)
    loader(run, TRAIN)
    run.add("iterator", t=run.now, loader=TRAIN, pids=[])
    run.steps(30, plain)
    traced(run, 2)
    found = load_run(run.write()).get(StepHistory)
    assert found is not None
    assert len(found.end_ns) == len(found.durations_ns) == 32
    assert found.windows == ("baseline",) * 30 + ("trace",) * 2
    assert sum(found.clean) <= 30 and not any(found.clean[30:])
    assert len(found.epochs_ns) == 1 and found.epochs_ns[0] < found.end_ns[0]


def test_a_run_without_a_clean_step_shows_its_steps_all_the_same(tmp_path: Path) -> None:
    run = Run(tmp_path)
    traced(run, 2)
    evidence = load_run(run.write())
    found = evidence.get(StepHistory)
    assert found is not None and evidence.get(Steps) is None
    assert (len(found.windows), found.clean) == (2, (False, False))
