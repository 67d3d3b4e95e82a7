"""Sampled stacks become shares of the user's own lines."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tdiag.evidence.from_run import load_run
from tdiag.evidence.sampled import Stacks
from tdiag.evidence.store import Evidence

from .making import TRAIN, Run, loader, plain

PACKAGES = "/env/lib/python3.11/site-packages/"
FRAMES = [
    {"name": "process 100", "file": "", "line": 0},
    {"name": "<module>", "file": "/u/train.py", "line": 30},
    {"name": "Tensor.backward", "file": PACKAGES + "torch/_tensor.py", "line": 500},
    {"name": "fetch", "file": PACKAGES + "torch/utils/data/_utils/fetch.py", "line": 50},
    {"name": "Pictures.__getitem__", "file": "/u/data.py", "line": 12},
    {"name": "decode", "file": PACKAGES + "PIL/Image.py", "line": 9},
    {"name": "poll", "file": "/usr/lib/python3.11/selectors.py", "line": 4},
    {"name": "loss", "file": "/u/train.py", "line": 8},
    {"name": "read_cpu_clock", "file": "/src/tdiag/probe/record.py", "line": 100},
    {"name": "_engine_run_backward", "file": PACKAGES + "torch/autograd/graph.py", "line": 900},
    {"name": "recompute", "file": "/u/train.py", "line": 40},
    {"name": "_bootstrap", "file": "/usr/lib/python3.11/threading.py", "line": 1000},
    {"name": "step", "file": "<tdiag importlib._bootstrap>", "line": 100},
    {"name": "loss.<locals>.<listcomp>", "file": "/u/train.py", "line": 9},
]
MODULE, BACKWARD, FETCH, ITEM, DECODE, POLL, LOSS, PROBE, ENGINE, RECOMPUTE = range(1, 11)
STARTED, WRAPPER, COMPREHENSION = 11, 12, 13


def thread(pid: int, tid: int, *samples: list[int]) -> dict[str, Any]:
    name = f'Process {pid} Thread {tid} "MainThread"'
    return {"type": "sampled", "name": name, "samples": samples, "weights": [0.01] * len(samples)}


def stacks_of(folder: Path, *profiles: dict[str, Any], **more: Any) -> Stacks | None:
    return evidence_of_stacks(folder, *profiles, **more).get(Stacks)


def evidence_of_stacks(folder: Path, *profiles: dict[str, Any], **more: Any) -> Evidence:
    worker = Run(folder, pid=101)
    worker.lines = worker.lines[:1]
    worker.add("role", role="worker", tid=101, worker=0, loader=-1)
    worker.write()
    run = Run(folder)
    loader(run, TRAIN, num_workers=1)
    run.add("iterator", t=run.now, loader=TRAIN, pids=[101])
    document = {"shared": {"frames": FRAMES}, "profiles": profiles} | more
    (folder / "stacks-100-2.speedscope.json").write_text(json.dumps(document))
    return load_run(run.steps(30, plain).write())


def test_other_threads_of_python_count_while_they_work(tmp_path: Path) -> None:
    """Thread 7 makes a loss in two of three samples, and waits in one; thread 8 is a library's."""
    found = stacks_of(
        tmp_path,
        thread(100, 100, [MODULE], [MODULE], [MODULE]),
        thread(100, 7, [STARTED, LOSS], [STARTED, LOSS, DECODE], [STARTED, LOSS, STARTED]),
        thread(100, 8, [STARTED, POLL], [STARTED, POLL], [STARTED, POLL]),
    )
    assert found is not None and found.samples == 3
    assert [(x.at.line, x.self_frac) for x in found.beside] == [(8, 1.0)]
    assert [(x.at.line, x.self_frac) for x in found.others] == [(8, 1.0)]
    assert found.others[0].leaf  # also where it waits


def test_samples_in_other_libraries_are_told_from_those_in_torch(tmp_path: Path) -> None:
    """Of ten samples of one line: three decode a picture, two are torch's, one is a hook's."""
    each = [[MODULE, DECODE]] * 3 + [[MODULE, BACKWARD]] * 2 + [[MODULE, WRAPPER]] + [[MODULE]] * 4
    found = stacks_of(tmp_path, thread(100, 100, *each))
    assert found is not None
    (line,) = found.training
    assert (round(line.own_frac, 6), round(line.elsewhere_frac, 6)) == (0.4, 0.3)


def test_shares_are_of_the_training_thread_by_innermost_user_line(tmp_path: Path) -> None:
    found = stacks_of(
        tmp_path,
        thread(100, 100, *[[0, MODULE, BACKWARD]] * 6, *[[0, MODULE, LOSS]] * 3, [0, POLL]),
        thread(100, 777, *[[0, MODULE]] * 50),  # another thread of the same process
    )
    assert found is not None
    assert (found.source, found.samples) == ("py-spy", 10)
    first, second = found.training
    assert (first.at.line, round(first.self_frac, 6), first.phase) == (30, 0.6, "backward")
    assert (first.leaf, first.library) == ("Tensor.backward (torch/_tensor.py)", "torch")
    assert (first.own_frac, second.own_frac) == (0.0, second.self_frac)
    assert second.library == "", "its own work"
    assert (second.at.line, round(second.self_frac, 6), second.phase) == (8, 0.3, "")


def test_a_comprehension_and_its_function_share_their_line(tmp_path: Path) -> None:
    """Python 3.11 gives ``[x[i] for i in ...]`` a frame of its own, on the line that calls it."""
    inner = {"name": "loss.<locals>.<listcomp>", "file": "/u/train.py", "line": 8}
    frames = [*FRAMES, inner]
    found = stacks_of(
        tmp_path,
        thread(100, 100, *[[0, MODULE, LOSS]] * 3, *[[0, MODULE, LOSS, len(FRAMES)]] * 2),
        shared={"frames": frames},
    )
    assert found is not None
    (only,) = found.training
    assert (only.at.line, only.at.function, only.self_frac) == (8, "loss", 1)


def test_workers_count_while_they_fetch(tmp_path: Path) -> None:
    found = stacks_of(
        tmp_path,
        thread(100, 100, [0, MODULE]),
        thread(101, 101, *[[0, MODULE, FETCH, ITEM, DECODE]] * 3, *[[0, MODULE, POLL]] * 9),
        thread(999, 999, *[[0, MODULE, FETCH, ITEM]] * 20),  # no worker of this run
    )
    assert found is not None
    assert found.worker_samples == 3
    only = found.workers[0]
    assert (only.at.file, only.at.line, only.self_frac) == ("/u/data.py", 12, 1)
    assert (only.leaf, only.library) == ("decode (PIL/Image.py)", "PIL")


def test_a_forked_worker_does_not_fetch_at_the_line_that_started_it(tmp_path: Path) -> None:
    """Its stack begins with its parent's: makemore starts its workers in a constructor."""
    found = stacks_of(
        tmp_path,
        thread(100, 100, [0, MODULE]),
        thread(101, 101, *[[0, MODULE, FETCH]] * 3, [0, MODULE, FETCH, ITEM, DECODE]),
    )
    assert found is not None and found.worker_samples == 4
    assert [(line.at.line, line.self_frac) for line in found.workers] == [(12, 0.25)]


def test_the_probes_own_frames_are_nobodys_line(tmp_path: Path) -> None:
    found = stacks_of(tmp_path, thread(100, 100, [0, MODULE, WRAPPER]))
    assert found is not None
    assert [line.at.line for line in found.training] == [30]


def test_a_hook_of_the_probe_is_not_what_a_line_called(tmp_path: Path) -> None:
    found = stacks_of(tmp_path, thread(100, 100, [0, MODULE, BACKWARD, WRAPPER]))
    assert found is not None
    assert found.training[0].leaf == "Tensor.backward (torch/_tensor.py)"


def test_in_process_samples_are_marked(tmp_path: Path) -> None:
    found = stacks_of(tmp_path, thread(100, 100, [1]), exporter="tdiag in-process")
    assert found is not None
    assert found.source == "in-process"


def test_a_half_written_file_is_left_out(tmp_path: Path) -> None:
    run = Run(tmp_path)
    (tmp_path / "stacks-100.speedscope.json").write_text('{"shared": {"frames": [')
    evidence = load_run(run.steps(30, plain).write())
    assert evidence.get(Stacks) is None
    assert evidence.missing[Stacks].startswith("stacks were not sampled")


def test_the_probes_own_work_belongs_to_no_line(tmp_path: Path) -> None:
    """A thread that lost its core gets it back in a hook that reads a clock."""
    found = stacks_of(
        tmp_path, thread(100, 100, *[[0, MODULE, PROBE]] * 8, *[[0, MODULE, LOSS]] * 2)
    )
    assert found is not None
    assert round(found.probe_frac, 6) == 0.8
    assert found.samples == 10
    assert [(line.at.line, round(line.self_frac, 6)) for line in found.training] == [(8, 0.2)]


def test_what_autograds_threads_do_stands_where_the_training_thread_waits_for_them(
    tmp_path: Path,
) -> None:
    """On a device backward runs there: hooks, recomputation, functions of the user's."""
    found = stacks_of(
        tmp_path,
        thread(100, 100, *[[0, MODULE, BACKWARD, ENGINE]] * 6, *[[0, MODULE, LOSS]] * 4),
        thread(100, 777, *[[0, RECOMPUTE]] * 3),  # autograd's
        thread(100, 778, *[[0, STARTED, POLL]] * 10),  # one that Python started
    )
    assert found is not None
    shares = {line.at.line: round(line.self_frac, 2) for line in found.training}
    assert shares == {30: 0.3, 8: 0.4, 40: 0.3}
    assert {line.at.line: line.phase for line in found.training}[40] == "backward"
    assert sum(shares.values()) == pytest.approx(1)


LIGHTNING = PACKAGES + "lightning/pytorch/"
OF_LIGHTNING = [
    {"name": "_FitLoop.advance", "file": LIGHTNING + "loops/fit_loop.py", "line": 20},
    {"name": "decorate_context", "file": PACKAGES + "torch/utils/_contextlib.py", "line": 100},
    {"name": "Adam.step", "file": PACKAGES + "torch/optim/adam.py", "line": 200},
    {"name": "Closure.closure", "file": LIGHTNING + "loops/optimization/automatic.py", "line": 130},
    {"name": "call", "file": PACKAGES + "torch/nn/functional.py", "line": 3000},
    {"name": "TQDMProgressBar.on_train_batch_end",
     "file": LIGHTNING + "callbacks/progress/tqdm_progress.py", "line": 90},
    {"name": "CSVLogger.log_metrics", "file": LIGHTNING + "loggers/csv_logs.py", "line": 70},
    {"name": "signature", "file": "/usr/lib/python3.11/inspect.py", "line": 3000},
    {"name": "LightningModule.log", "file": LIGHTNING + "core/module.py", "line": 400},
    {"name": "status_printer", "file": PACKAGES + "tqdm/std.py", "line": 400},
    {"name": "DataLoader.__next__", "file": PACKAGES + "torch/utils/data/dataloader.py", "line": 9},
]  # fmt: skip
FIT, CONTEXT, ADAM, CLOSURE, CALL, BAR, CSV, INSPECT, LOG, TQDM, NEXT_BATCH = (
    len(FRAMES) + n for n in range(len(OF_LIGHTNING))
)


def test_what_a_framework_does_by_itself_is_told_apart_under_the_line_that_called_it(
    tmp_path: Path,
) -> None:
    begun = [0, MODULE, FIT, CONTEXT]
    found = stacks_of(
        tmp_path,
        thread(
            100, 100,
            *[[*begun, BAR]] * 3,  # the progress bar
            *[[*begun, BAR, TQDM]],
            *[[*begun, CSV]] * 2,  # the logger
            *[[*begun, ADAM, CLOSURE, INSPECT]] * 4,  # the loop's own Python
            *[[*begun, ADAM]] * 5,  # the update
            *[[*begun, CLOSURE, CALL]] * 3,  # torch's work
            *[[*begun, NEXT_BATCH, CSV]],  # a dataset that writes is slow at loading
            *[[*begun, ADAM, CLOSURE, LOSS, LOG]],  # the user's line that logs, in a closure
        ),
        shared={"frames": [*FRAMES, *OF_LIGHTNING]},
    )  # fmt: skip
    assert found is not None
    fit, log = found.training
    assert {name: round(20 * frac, 6) for name, frac in fit.logging} == {
        "the progress bar": 4, "the logger": 2,
    }  # fmt: skip
    assert round(20 * fit.framework, 6) == 4
    ((name, frac),) = log.logging
    assert (name, round(20 * frac, 6), log.phase) == ("self.log", 1, "")


def test_samples_in_a_frameworks_evaluation_are_told(tmp_path: Path) -> None:
    loops = [
        {"name": "_EvaluationLoop.run", "file": LIGHTNING + "loops/evaluation_loop.py"},
        {"name": "Trainer.evaluation_loop", "file": PACKAGES + "transformers/trainer.py"},
        {"name": "Trainer.train", "file": PACKAGES + "transformers/trainer.py"},
    ]
    first = len(FRAMES) + len(OF_LIGHTNING)
    found = stacks_of(
        tmp_path,
        thread(100, 100, *[[MODULE, first, LOSS]] * 2, [MODULE, first + 1, LOSS],
               *[[MODULE, first + 2, LOSS]] * 2),
        shared={"frames": [*FRAMES, *OF_LIGHTNING, *loops]},
    )  # fmt: skip
    assert found is not None
    assert (found.training[0].self_frac, round(found.training[0].evaluating, 6)) == (1.0, 0.6)


def test_an_update_stays_one_under_hooks_of_torch(tmp_path: Path) -> None:
    found = stacks_of(
        tmp_path,
        thread(100, 100, [0, MODULE, ADAM, CONTEXT, INSPECT]),
        shared={"frames": [*FRAMES, *OF_LIGHTNING]},
    )
    assert found is not None
    assert found.training[0].phase == "optimizer"
    assert not found.training[0].framework


def test_a_thread_counts_by_its_time_on_a_core(tmp_path: Path) -> None:
    """Threads 7 and 8 are sampled equally often; 7 sleeps, and 8 has used nine times the time."""
    run = Run(tmp_path)
    for t, sleeper, worker in ((0, 0, 0), (100, 1, 9)):
        run.add("window", t=t, name="baseline", state="begin", threads={7: sleeper, 8: worker})
    (tmp_path / "stacks-100-2.speedscope.json").write_text(
        json.dumps(
            {
                "shared": {"frames": FRAMES},
                "profiles": [
                    thread(100, 100, [MODULE]),
                    thread(100, 7, [STARTED, LOSS]),
                    thread(100, 8, [STARTED, RECOMPUTE]),
                ],
            }
        )
    )
    found = load_run(run.steps(30, plain).write()).get(Stacks)
    assert found is not None
    assert [(x.at.line, round(x.self_frac, 6)) for x in found.beside] == [(40, 0.9), (8, 0.1)]


def test_a_comprehension_is_a_line_of_the_function_around_it(tmp_path: Path) -> None:
    """Before Python 3.12 it is a function of its own."""
    found = stacks_of(tmp_path, thread(100, 100, [MODULE, LOSS, COMPREHENSION], [MODULE, LOSS]))
    assert found is not None
    found_at = {(x.at.line, x.at.function, x.self_frac) for x in found.training}
    assert found_at == {(9, "loss", 0.5), (8, "loss", 0.5)}
