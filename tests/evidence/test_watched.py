"""Stacks of a process that was watched from outside become activities, workers and ranks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tdiag.evidence.from_run import load_run
from tdiag.evidence.sampled import Stacks
from tdiag.evidence.steps import Steps
from tdiag.model.watched import Watched

PACKAGES = "/env/lib/python3.11/site-packages/"
FILES = {
    "<module>": "/u/train.py",
    "evaluate": "/u/train.py",
    "train": "/u/train.py",
    "Data.__getitem__": "/u/data.py",
    "Data.validate": "/u/data.py",
    "next": "_BaseDataLoaderIter.__next__ torch/utils/data/dataloader.py",
    "iter": "_MultiProcessingDataLoaderIter.__init__ torch/utils/data/dataloader.py",
    "fetch": "_MapDatasetFetcher.fetch torch/utils/data/_utils/fetch.py",
    "worker": "_worker_loop torch/utils/data/_utils/worker.py",
    "queue": "Queue.get /usr/lib/python3.11/multiprocessing/queues.py",
    "module": "Module._call_impl torch/nn/modules/module.py",
    "backward": "Tensor.backward torch/_tensor.py",
    "optimizer": "SGD.step torch/optim/sgd.py",
    "save": "save torch/serialization.py",
    "all_reduce": "all_reduce torch/distributed/distributed_c10d.py",
    "import": "_find_and_load <frozen importlib._bootstrap>",
    "compile": "compile torch/_dynamo/convert_frame.py",
    "tensorboard": "SummaryWriter.add_scalar torch/utils/tensorboard/writer.py",
    "rank": "PContext.wait torch/distributed/elastic/multiprocessing/api.py",
}


def frame(word: str) -> dict[str, Any]:
    """``train:12``: that line of a function of the user's; else by :data:`FILES`."""
    name, _, line = word.partition(":")
    *known, file = FILES[name].split(" ", 1)
    inside = PACKAGES + file if file.startswith("torch/") else file
    return {"name": known[0] if known else name, "file": inside, "line": int(line or 1)}


def watched(
    folder: Path,
    threads: dict[tuple[int, int], list[str]],
    *,
    ranks: tuple[tuple[int, int | None], ...] = ((100, None),),
    states: tuple[tuple[int, float, float], ...] = (),
    parents: dict[str, int] | None = None,
    device: bool = False,
) -> Watched:
    """``threads``: (pid, tid) → stacks, each a sentence of frames, outermost first. ``states``:
    pid, share of the time on a core and waiting for one."""
    frames: list[dict[str, Any]] = []
    profiles = []
    for (pid, tid), stacks in threads.items():
        samples = []
        for stack in stacks:
            first = len(frames)
            frames += [frame(word) for word in stack.split()]
            samples.append(list(range(first, len(frames))))
        name = f'Process {pid} Thread {tid} "MainThread"'
        weights = [0.04] * len(samples)
        profiles.append({"name": name, "samples": samples, "weights": weights})
    document = {"shared": {"frames": frames}, "profiles": profiles}
    root = ranks[0][0]
    (folder / f"stacks-{root}.speedscope.json").write_text(json.dumps(document))
    attached = {
        "root": root,
        "ranks": ranks,
        "device": device,
        "started_unix_ns": 10**19,
        "parents": parents or {},
        "alone_ns": [0, 10**9],
        "seconds": 20.0,
        "threads": [
            {"pid": pid, "wall_ns": 1000, "cpu_ns": round(1000 * on), "process_ns": 1200,
             "queued_ns": round(1000 * queued), "read_bytes": 0, "samples": 10, "disk": 0}
            for pid, on, queued in states
        ],
    }  # fmt: skip
    run = {"schema": 1, "command": ["python", "train.py"], "attached": attached, "notes": []}
    (folder / "run.json").write_text(json.dumps(run))
    found = load_run(folder).get(Watched)
    assert found is not None
    return found


def activity(folder: Path, stack: str, *others: str, device: bool = False) -> str:
    """What the first of these samples is counted as."""
    found = watched(folder, {(100, 100): [stack, *others]}, device=device)
    share = 1 / (1 + len(others))
    return next(a.name for a in found.activities if a.frac == pytest.approx(share))


TRAINS = ("<module>:1 train:2 backward",) * 4


@pytest.mark.parametrize(
    ("stack", "name"),
    [
        ("<module>:1 train:2 next fetch Data.__getitem__:5", "data_wait"),
        ("<module>:1 train:2 next fetch Data.__getitem__:5 module", "data_wait"),
        ("<module>:1 train:2 iter", "loader start"),
        ("<module>:1 train:2 module", "forward"),
        ("<module>:1 train:2 optimizer train:3 module", "forward"),
        ("<module>:1 train:2 optimizer", "optimizer"),
        ("<module>:1 train:2 save", "checkpoint"),
        ("<module>:1 train:2 all_reduce", "comm"),
        ("<module>:1 train:2 tensorboard", "logging"),
        ("<module>:1 train:2 import", "imports"),
        ("<module>:1 train:2 module compile import", "compiling"),
        ("<module>:1 train:2", "other"),
        ("<module>:1 evaluate:2 module", "evaluation"),
        ("<module>:1 evaluate:2 next fetch Data.__getitem__:5", "evaluation"),
        ("<module>:1 train:2 next fetch Data.validate:5", "data_wait"),
    ],
)
def test_a_stack_is_one_activity(stack: str, name: str, tmp_path: Path) -> None:
    assert activity(tmp_path, stack, *TRAINS) == name


def test_recomputation_in_backward_is_backward(tmp_path: Path) -> None:
    found = watched(tmp_path, {(100, 100): ["<module>:1 train:2 backward train:9 module"]})
    assert [a.name for a in found.activities] == ["backward"]


def test_a_function_that_trains_is_no_evaluation_whatever_its_name(tmp_path: Path) -> None:
    trains = ["<module>:1 evaluate:2 backward"] * 4
    assert activity(tmp_path, "<module>:1 evaluate:2 module", *trains) == "forward"


def test_shares_sum_to_one_and_name_the_line_with_most_samples(tmp_path: Path) -> None:
    waits = ["<module>:1 train:2 next"] * 6 + ["<module>:1 train:7 next"] * 2
    found = watched(tmp_path, {(100, 100): [*waits, "<module>:1 train:3 backward"] * 10})
    assert sum(a.frac for a in found.activities) == pytest.approx(1)
    first = found.activities[0]
    assert (first.name, first.frac) == ("data_wait", pytest.approx(8 / 9))
    assert first.at is not None and (first.at.line, first.at_frac) == (2, pytest.approx(6 / 9))


def test_the_error_of_a_share_is_that_of_the_windows_parts(tmp_path: Path) -> None:
    """Half of the samples either way: in turns the share is known well, as two blocks badly."""
    wait, work = "<module>:1 train:2 next", "<module>:1 train:3 backward"
    mixed = watched(tmp_path, {(100, 100): [wait, work] * 100})
    blocks = watched(tmp_path, {(100, 100): [wait] * 100 + [work] * 100})
    assert mixed.activities[0].error_frac == 0.0
    assert blocks.activities[0].error_frac == pytest.approx((10 / 9 * 0.25 / 10) ** 0.5)


def test_reading_a_value_waits_only_for_a_device(tmp_path: Path) -> None:
    source = tmp_path / "loop.py"
    source.write_text("loss = loss.item()\n")
    FILES["reads"] = str(source)
    for device, name in ((True, "sync"), (False, "other")):
        assert activity(tmp_path, "<module>:1 reads:1", *TRAINS, device=device) == name


def test_workers_are_those_of_the_process_that_is_judged(tmp_path: Path) -> None:
    fetching, idle = "<module>:1 worker fetch Data.__getitem__:5", "<module>:1 worker queue"
    found = watched(
        tmp_path,
        {
            (100, 100): ["<module>:1 train:2 next"] * 4 + list(TRAINS),
            (101, 101): [fetching] * 3 + [idle],
            (102, 102): [fetching] * 4,
            (103, 103): [idle] * 4,  # of another program
        },
        parents={"101": 100, "102": 100, "103": 99},
        states=((100, 0.2, 0.0), (101, 0.7, 0.1), (102, 0.9, 0.0)),
    )
    fetches = found.fetching
    assert fetches is not None
    assert (fetches.workers, fetches.fetch_frac) == (2, pytest.approx(7 / 8))
    assert fetches.cpu_frac == pytest.approx(0.8)
    assert fetches.at is not None and fetches.at.file == "/u/data.py"


def test_a_launcher_trains_nothing_and_the_late_rank_is_judged(tmp_path: Path) -> None:
    work, wait = "<module>:1 train:3 backward", "<module>:1 train:2 next"
    found = watched(
        tmp_path,
        {
            (100, 100): ["<module>:1 rank"] * 10,
            (101, 101): [work] * 8 + [wait] * 2,
            (102, 102): [work] * 2 + [wait] * 8,
        },
        ranks=((101, 0), (102, 1)),
    )
    assert found.pid == 102
    assert [(rank.rank, rank.activities[0].name) for rank in found.ranks] == [
        (0, "backward"),
        (1, "data_wait"),
    ]


def test_a_module_that_runs_by_its_name_has_a_training_thread(tmp_path: Path) -> None:
    """`python -m`: the outermost frame is runpy's."""
    FILES["runpy"] = "_run_module_as_main <frozen runpy>"
    found = watched(tmp_path, {(100, 100): ["runpy <module>:1 train:2 backward"]})
    assert [a.name for a in found.activities] == ["backward"]


def test_a_worker_is_no_training(tmp_path: Path) -> None:
    samples = {(101, 101): ["<module>:1 worker fetch Data.__getitem__:5"]}
    found = watched(tmp_path, samples, ranks=((101, None),), parents={"101": 100})
    assert found.samples == 0
    why = load_run(tmp_path).why_missing(Stacks)
    assert why == "process 101 is a DataLoader worker; watch its parent, process 100"


def test_without_samples_it_is_said_and_steps_are_missing(tmp_path: Path) -> None:
    found = watched(tmp_path, {})
    assert found.samples == 0 and not found.activities
    evidence = load_run(tmp_path)
    assert evidence.capture["sample"].state == "failed"
    assert "the probe was not in the process" in evidence.why_missing(Steps)
    assert evidence.get(Stacks) is None
