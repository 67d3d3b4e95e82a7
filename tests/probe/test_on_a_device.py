"""The windows of a loop whose work is done on a device, long after it was launched."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

from tdiag.evidence.steps import Steps
from tdiag.launch.progress import Progress
from tdiag.probe import plan
from tdiag.probe.capture import syncs
from tdiag.probe.capture.trace import TraceCapture
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
    expected = truth(body)
    steps = run.evidence().get(Steps)
    assert steps is not None
    assert steps.mean_ns / expected == pytest.approx(1.0, abs=0.01)
    assert run.of("failure") == []
    progress = Progress(run.run_dir)
    progress.look()
    (shown,) = progress.processes.values()
    assert shown.clean_step_ns is not None
    assert shown.clean_step_ns / expected == pytest.approx(1.0, abs=0.02)
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


ALL = ["baseline", "trace", "calls", "ops", "sample"]


def test_no_clean_step_comes_after_a_trace_and_what_it_leaves_behind_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As CUPTI does, our trace stays attached: kernels take 15 % longer from then on."""
    longer = [1.0]

    def body(cuda: SimulatedCuda) -> None:
        for _ in range(60):
            cuda.launch(round(MS // 2 * longer[0]))

    begin = TraceCapture.begin

    def attached(self: TraceCapture) -> None:
        longer[0] = 1.15
        begin(self)

    monkeypatch.setattr(TraceCapture, "begin", attached)
    run = Loop(tmp_path, monkeypatch, body, windows=ALL, sampler="off").train(1000)
    assert run.windows() == [
        "baseline1", "calls1", "ops1", "baseline2", "trace1", "residue1",
        "trace2", "calls2", "ops2",
    ]  # fmt: skip
    steps = run.evidence().get(Steps)
    assert steps is not None and steps.count == 100
    assert steps.mean_ns / truth(launches(60, MS // 2)) == pytest.approx(1.0, abs=0.01)
    residue = next(r["residue"] for r in run.of("window") if "residue" in r)
    assert residue == pytest.approx(0.15, abs=0.01)
    assert [r["residue"] for r in run.of("finish")] == [residue]
    assert run.of("failure") == []


def test_without_a_trace_nothing_is_left_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TraceCapture, "start", lambda self: "the script profiles itself")
    loop = Loop(tmp_path, monkeypatch, launches(60, MS // 2), windows=["baseline", "trace"])
    run = loop.train(400)
    assert run.windows() == ["baseline1", "baseline2"]
    assert [r["residue"] for r in run.of("finish")] == [None]


@pytest.mark.parametrize("slow", [False, True])
def test_every_window_of_the_plan_is_there_on_a_device_too(slow: bool) -> None:
    config = {"windows": [*ALL, "syscalls"]}
    usual = plan.windows(config, slow)
    device = plan.windows(config, slow, on_device=True)
    names = [window.name for window in device]
    assert sorted(w for w in device if w.name != "residue") == sorted(usual)
    assert max(n for n, name in enumerate(names) if name == "baseline") < names.index("trace")
    assert names[names.index("trace") + 1] == "residue"
    others = plan.windows({"windows": ["ops"]}, slow, on_device=True)
    assert sorted(others) == sorted(plan.windows({"windows": ["ops"]}, slow))


def reads_a_value(cuda: SimulatedCuda) -> None:
    cuda.launch(30 * MS)
    cuda.item()


@pytest.mark.parametrize("action", ["default", "error"])
def test_the_warning_that_counting_synchronisations_brings_is_not_the_scripts(
    action: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = Loop(tmp_path, monkeypatch, reads_a_value, windows=["baseline", "ops"])
    with warnings.catch_warnings(record=True) as shown:
        warnings.simplefilter(action)
        run = loop.train(300)
    assert [str(w.message) for w in shown] == []
    assert run.of("failure") == []
    counted = [sum(n for _, n in r["syncs"]) / r["steps"] for r in run.of("ops")]
    assert counted == [1.0, 1.0]
    assert loop.cuda.sync_debug_mode == 0


def waits(cuda: SimulatedCuda) -> None:
    cuda.launch(30 * MS)
    torch.cuda.synchronize()  # by name


def test_waits_that_the_script_asks_for_have_their_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """tdiag's own, at the ends of its windows, do not count."""
    loop = Loop(tmp_path, monkeypatch, waits, windows=["baseline", "ops"])
    run = loop.train(300)
    line = next(n for n, x in enumerate(Path(__file__).read_text().splitlines(), 1) if "# by" in x)
    for record in run.of("ops"):
        ((at, times),) = record["synchronized"]
        assert (at[1], times / record["steps"]) == (line, 1.0)
    assert torch.cuda.synchronize == loop.cuda.synchronize


def test_implicit_waits_are_not_counted_where_gloo_sends_the_devices_tensors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its threads read them, and have no Python that would take the warning."""
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    for backends, elsewhere in (("cpu:gloo,cuda:gloo", True), ("cpu:gloo,cuda:nccl", False)):
        monkeypatch.setattr(torch.distributed, "get_backend_config", lambda b=backends: b)
        assert syncs.warns_elsewhere() is elsewhere
    monkeypatch.undo()
    monkeypatch.setattr(syncs, "warns_elsewhere", lambda: True)
    run = Loop(tmp_path, monkeypatch, reads_a_value, windows=["baseline", "ops"]).train(300)
    assert [r["syncs"] for r in run.of("ops")] == [None, None]


def test_a_mode_of_the_scripts_own_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loop = Loop(tmp_path, monkeypatch, launches(1, 30 * MS), windows=["baseline", "ops"])
    loop.cuda.warned = True
    loop.cuda.set_sync_debug_mode("error")
    run = loop.train(300)
    assert loop.cuda.sync_debug_mode == 2
    assert [r["syncs"] for r in run.of("ops")] == [None, None]


def test_a_loop_on_the_cpu_has_nothing_to_drain(tmp_path: Path) -> None:
    from .harness import watch_code
    from .test_windows import LOOP

    run = watch_code(tmp_path, LOOP, "0", "60", windows=["baseline"])
    assert {r["drained"] for r in run.of("window") if r["state"] == "end"} == {None}
