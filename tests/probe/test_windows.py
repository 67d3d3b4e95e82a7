"""The windows: order, bounds, what is left out, and what makes one be skipped."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from tdiag.probe.windows import Windows

from .harness import watch_code

LOOP = """
import sys, torch
from torch.utils.data import DataLoader, TensorDataset
workers, steps = int(sys.argv[1]), int(sys.argv[2])
model = torch.nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
data = TensorDataset(torch.randn(640, 8), torch.randn(640, 2))
loader = DataLoader(data, batch_size=8, num_workers=workers, prefetch_factor=3 if workers else None)
done = 0
while done < steps:
    for x, y in loader:
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
        done += 1
        if done == steps:
            break
print("done", done)
"""


def test_a_bounded_run_ends_by_itself_with_all_windows_in_order(tmp_path: Path) -> None:
    run = watch_code(tmp_path, LOOP, "0", "100000000", profiling=True, short=True)
    assert run.returncode == 0
    assert "done" not in run.out
    assert [r["why"] for r in run.of("finish")] == ["complete"]
    assert run.windows() == [
        "baseline1", "trace1", "calls1", "ops1", "sample1",
        "baseline2", "sample2", "trace2", "calls2", "ops2",
    ]  # fmt: skip
    assert run.of("failure") == []
    assert len(list((run.run_dir / "tensorboard").iterdir())) == 2


def test_without_the_switch_the_script_runs_to_its_end(tmp_path: Path) -> None:
    run = watch_code(tmp_path, LOOP, "0", "60", windows=["baseline"])
    assert run.out == "done 60\n"


def test_the_number_of_steps_bounds_the_run(tmp_path: Path) -> None:
    run = watch_code(tmp_path, LOOP, "0", "100000000", profiling=True, steps=25)
    assert run.returncode == 0
    assert [r["why"] for r in run.of("finish")] == ["steps"]
    assert run.steps()[-1]["i"] == 24


def test_a_request_of_the_parent_ends_the_run_at_a_step(tmp_path: Path) -> None:
    code = LOOP.replace(
        "done += 1", "done += 1\n        if done == 9: open('run/control/finish', 'w').close()"
    )
    run = watch_code(tmp_path, code, "0", "100000000")
    assert run.returncode == 0
    assert [r["why"] for r in run.of("finish")] == ["asked"]


def test_warm_up_lasts_until_prefetched_batches_are_used_up(tmp_path: Path) -> None:
    run = watch_code(tmp_path, LOOP, "2", "200", windows=["baseline"])
    first = next(s["i"] for s in run.steps() if s["w"] == "baseline")
    assert first >= 2 * 3  # workers × prefetch_factor


def slowed(seconds: float) -> str:
    """Steps that take so much longer than a worker takes for a batch."""
    code = LOOP.replace("import sys, torch", "import sys, time, torch")
    return code.replace("        done += 1", f"        time.sleep({seconds})\n        done += 1")


@pytest.mark.parametrize(
    ("pace_ms", "since_ms", "steps", "ahead_ms", "left_out"),
    [
        (None, 0, 0, 0, 7),  # nothing is known of the pace: the whole queue, and the first step
        (10, 200, 1, 0, 7),  # 19 may have come meanwhile, 6 of them found room
        (10, 15, 1, 0, 3),  # half a batch more than was taken, four times over
        (10, 10, 1, 0, 1),  # as many came as were taken
        (10, 10, 1, 60, 5),  # workers began six steps before: 24, of which 20 steps used some
        (10, 10, 1, 30, 1),
    ],
)
def test_after_a_pause_what_came_meanwhile_is_left_out(
    pace_ms: float | None, since_ms: float, steps: int, ahead_ms: float, left_out: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr("tdiag.probe.windows.now_ns", lambda: 10**9)
    windows = object.__new__(Windows)
    windows.queue = {0: 6}
    windows.step_ns = None if pace_ms is None else pace_ms * 1e6
    windows.ahead_ns = round(ahead_ms * 1e6)
    windows.calm = (10**9 - round(since_ms * 1e6), 20 - steps)
    windows.probe = SimpleNamespace(step=20)  # type: ignore[assignment]
    assert windows._settle_steps() == left_out


def until_calls(code: str) -> str:
    """It ends as soon as the window of calls has begun."""
    begun = """
def begun():
    import glob
    files = [open(name).read() for name in glob.glob("run/events/*")]
    return any('"name":"calls","state":"begin"' in text for text in files)
"""
    end = "if done == steps or begun():\n            done = steps"
    return begun + code.replace("if done == steps:", end)


def test_of_slow_steps_no_more_are_left_out_than_batches_came_meanwhile(tmp_path: Path) -> None:
    deep = until_calls(slowed(0.2).replace("prefetch_factor=3", "prefetch_factor=20"))
    run = watch_code(tmp_path, deep, "2", "34", windows=["baseline", "calls"], time_budget_s=7.5)
    begun = [r["name"] for r in run.of("window") if r["state"] == "begin"]
    assert begun[:2] == ["baseline", "calls"]  # after a queue of 40 neither would


def test_an_empty_queue_holds_nothing_to_leave_out(tmp_path: Path) -> None:
    starved = LOOP.replace("data = TensorDataset(", "import time\ndata = Late(").replace(
        "loader = ", "\nloader = "
    )
    late = """
class Late(torch.utils.data.TensorDataset):
    def __getitem__(self, index):
        time.sleep(0.02)
        return super().__getitem__(index)
"""
    run = watch_code(
        tmp_path,
        until_calls(starved.replace("model = ", late + "model = ", 1).replace("=3", "=30")),
        "2", "60", windows=["baseline", "calls"], time_budget_s=6,
    )  # fmt: skip
    begun = [r for r in run.of("window") if r["state"] == "begin"]
    ended = [r for r in run.of("window") if r["state"] == "end"]
    assert begun[1]["step"] - ended[0]["step"] <= 5


def test_a_clean_window_holds_a_batch_of_each_worker(tmp_path: Path) -> None:
    run = watch_code(tmp_path, LOOP, "9", "160", windows=["baseline"])
    begin, end = (r for r in run.of("window") if r["pass"] == 1)
    assert end["step"] - begin["step"] >= 9  # five would do without workers


def test_what_tdiag_does_between_steps_is_in_no_step(tmp_path: Path) -> None:
    run = watch_code(tmp_path, LOOP, "0", "300", windows=["baseline", "trace"])
    trace = next(r for r in run.of("window") if r["name"] == "trace" and r["state"] == "end")
    steps = run.steps()
    after = next(s for s in steps if s["i"] == trace["step"])
    before = next(s for s in steps if s["i"] == trace["step"] - 1)
    assert after["s"] > before["t"]  # the export lies in the gap
    assert all(s["t"] > s["s"] for s in steps)


def test_a_profiler_of_the_scripts_own_is_left_alone(tmp_path: Path) -> None:
    code = LOOP.replace("done = 0", "done = 0\nown = torch.profiler.profile()\nown.__enter__()")
    code += "own.__exit__(None, None, None)\nprint(len(own.events()) > 0)\n"
    run = watch_code(tmp_path, code, "0", "60")
    assert run.returncode == 0
    assert run.out.splitlines()[-1] == "True"
    assert {r["name"]: r["why"] for r in run.of("window") if r["state"] == "skipped"} == {
        "trace": "the script runs its own torch profiler"
    }
    assert run.of("flags")[-1]["profiler"] is True


def test_compiled_graphs_skip_the_counting_window(tmp_path: Path) -> None:
    code = LOOP.replace(
        "model = torch.nn.Linear(8, 2)",
        "model = torch.compile(torch.nn.Linear(8, 2), backend='eager')",
    )
    run = watch_code(tmp_path, code, "0", "60")
    skipped = {r["name"]: r["why"] for r in run.of("window") if r["state"] == "skipped"}
    assert "compiled graphs" in skipped["ops"]


@pytest.mark.parametrize("steps", [3, 20])  # while modules are still discovered, and later
def test_when_the_evidence_is_complete_every_hook_rests_but_the_counter_of_steps(
    tmp_path: Path, steps: int
) -> None:
    code = (
        LOOP
        + """
import gc
from torch.utils.data import dataloader
from torch.utils.data._utils import fetch
for _ in range(20):  # a late window lasts nine steps
    if "tdiag" in torch.autograd.backward.__code__.co_filename:
        optimizer.zero_grad()
        model(x).sum().backward()
        optimizer.step()
names = {
    "step": torch.optim.SGD.step, "call": torch.nn.Linear.__call__, "save": torch.save,
    "backward": torch.autograd.backward, "next": dataloader._BaseDataLoaderIter.__next__,
    "fetch": fetch._MapDatasetFetcher.fetch, "init": DataLoader.__init__,
}
print([n for n, f in names.items() if "tdiag" in f.__code__.co_filename], gc.callbacks)
"""
    )
    run = watch_code(tmp_path, code, "0", "60", windows=["baseline"], steps=steps)
    assert run.out.splitlines()[-1] == "['step'] []"


def test_a_profiler_started_in_our_windows_takes_over(tmp_path: Path) -> None:
    code = LOOP.replace(
        "done += 1",
        """done += 1
        if trace_window():
            own = torch.profiler.profile()
            own.start()
            (model(x) + 1).sum()
            own.stop()
            print("torch.profiler", any("add" in e.name for e in own.events()))
        if calls_window():
            own = cProfile.Profile()
            own.enable()
            model(x)
            own.disable()
            print("cProfile", len(own.getstats()) > 3)""",
    ).replace(
        "done = 0",
        """
import cProfile, sys
def window(name, seen=set()):
    now = next(w for w in __import__("gc").get_objects() if type(w).__name__ == "Windows")
    return now.probe.window == name and not (name in seen or seen.add(name))
trace_window, calls_window = (lambda n=n: window(n) for n in ("trace", "calls"))
done = 0""",
        1,
    )
    run = watch_code(tmp_path, code, "0", "40", windows=["baseline", "trace", "calls"])
    assert run.returncode == 0, run.err
    assert "torch.profiler True" in run.out
    assert "cProfile True" in run.out
    assert run.of("failure") == []
    skipped = {r["name"]: r["why"] for r in run.of("window") if r["state"] == "skipped"}
    assert set(skipped) >= {"trace", "calls"}


def test_a_script_that_swallows_system_exit_is_ended_all_the_same(tmp_path: Path) -> None:
    code = LOOP.replace(
        "        optimizer.step()",
        """
        try:
            optimizer.step()
        except BaseException:
            print('swallowed')""",
    )
    run = watch_code(tmp_path, code, "0", "100000000", profiling=True, steps=20)
    assert run.out == "swallowed\n" * 3
    assert run.returncode == -15
    assert len(run.of("forced")) == 1


def test_a_ctrl_c_that_hits_a_collection_is_not_lost(tmp_path: Path) -> None:
    code = """
import gc, signal, time
import torch
# Python code that runs first in our own callback, where Python would swallow what it raises.
ours = gc.callbacks[0].__self__
original = type(ours)._collected
def collected(self, phase, info):
    type(self)._collected = original
    signal.raise_signal(signal.SIGINT)
type(ours)._collected = collected
optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)
ours.mine()
try:
    gc.collect()
    time.sleep(1000)  # ended by the signal, not waited for
    print("lost")
except KeyboardInterrupt:
    print("interrupted")
"""
    run = watch_code(tmp_path, code, windows=["baseline"])
    assert run.out == "interrupted\n"
    assert run.err == ""


def test_our_own_backward_is_no_step(tmp_path: Path) -> None:
    code = LOOP.replace("        optimizer.step()\n", "        by_hand()\n").replace(
        "done = 0",
        """
def by_hand():
    with torch.no_grad():
        for p in model.parameters():
            p -= 0.1 * p.grad
done = 0""",
        1,
    )
    run = watch_code(tmp_path, code, "0", "60", windows=["baseline"])
    assert run.of("failure") == []
    assert [r["source"] for r in run.of("boundary")] == ["backward"]
    assert len(run.steps()) == 59
    assert len(run.of("dispatch")) >= 1


@pytest.mark.parametrize("window", ["ops", "calls"])
def test_a_program_that_ends_in_the_first_counted_step_leaves_no_counts(
    window: str, tmp_path: Path
) -> None:
    begun = f'"name":"{window}","state":"begin"'
    code = LOOP.replace(
        "optimizer.zero_grad()",
        f"import glob\n        if {begun!r} in open(glob.glob('run/events/*')[0]).read():"
        " sys.exit()\n        optimizer.zero_grad()",
    )
    run = watch_code(tmp_path, code, "0", "100000", windows=["baseline", window])
    assert run.returncode == 0 and run.of("failure") == []
    assert run.windows() == ["baseline1", f"{window}1"] and run.of(window) == []
