"""The windows of a loop whose work is done on a device, long after it was launched."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tdiag.evidence.kinds import Steps
from tests.simulated.device import SimulatedCuda
from tests.simulated.loop import Loop, truth

MS = 1_000_000


def launches(number: int, work_ns: int, ends_with_a_wait: bool = False) -> Any:
    """A step of so many launches."""

    def body(cuda: SimulatedCuda) -> None:
        for _ in range(number):
            cuda.launch(work_ns)
        if ends_with_a_wait:  # loss.item()
            cuda.synchronize()

    return body


@pytest.mark.parametrize("waits", [False, True])
@pytest.mark.parametrize(("number", "work_ns"), [(1, 30 * MS), (60, MS // 2), (1000, 30_000)])
def test_the_mean_step_is_what_the_device_takes(
    number: int, work_ns: int, waits: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = launches(number, work_ns, waits)
    run = Loop(tmp_path, monkeypatch, body, windows=["baseline"]).train(
        min(3000, 200_000 // number)
    )
    steps = run.evidence().get(Steps)
    assert steps is not None
    assert steps.mean_ns / truth(body) == pytest.approx(1.0, abs=0.01)
    assert run.of("failure") == []
    assert steps.count < 150  # for 3 s: not until so many are launched that the queue is full


def test_a_window_in_which_the_program_ends_has_no_length(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = launches(1, 30 * MS)
    loop = Loop(tmp_path, monkeypatch, body, windows=["baseline"])
    loop.train(60)
    loop.windows.at_exit()
    run = loop.written()
    assert [(r["pass"], r["drained"] is None) for r in run.of("window") if r["state"] == "end"] == [
        (1, False), (2, True)
    ]  # fmt: skip
    steps = run.evidence().get(Steps)
    assert steps is not None and steps.count < 10  # of the first pass
    assert steps.mean_ns / truth(body) == pytest.approx(1.0, abs=0.01)


def test_no_window_begins_or_ends_with_work_of_other_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = Loop(tmp_path, monkeypatch, launches(60, MS // 2), windows=["baseline", "trace", "ops"])
    left: dict[str, set[int]] = {}
    write = loop.probe.recorder.write

    def watched(kind: Any, **fields: Any) -> None:
        if kind == "window":
            left.setdefault(fields["state"] + fields["name"], set()).add(len(loop.cuda.queue))
        write(kind, **fields)

    monkeypatch.setattr(loop.probe.recorder, "write", watched)
    loop.train(400)
    assert {"beginbaseline", "endbaseline", "begintrace", "endtrace", "beginops"} <= set(left)
    assert set.union(*left.values()) == {0}


def test_a_loop_on_the_cpu_has_nothing_to_drain(tmp_path: Path) -> None:
    from .harness import watch_code
    from .test_windows import LOOP

    run = watch_code(tmp_path, LOOP, "0", "60", windows=["baseline"])
    assert {r["drained"] for r in run.of("window") if r["state"] == "end"} == {None}
