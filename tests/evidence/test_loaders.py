"""Fetches are told by loader, wherever they ran, and only those of the clean window count."""

from __future__ import annotations

from pathlib import Path

import pytest

from tdiag.evidence.feeding import Loader, Loaders
from tdiag.evidence.from_run import load_run

from .making import MS, TRAIN, VALID, Run, loader, plain


def fetch(run: Run, at: int, wall: float = 4, **fields: object) -> None:
    ns = round(wall * MS)
    known = {
        "loader": TRAIN, "worker": None, "load": ns // 2, "load_cpu": ns // 4,
        "collate": ns // 2, "collate_cpu": ns // 2, "runq": 0, "read": 1000, "rchar": 4000,
        "majflt": 0,
    }  # fmt: skip
    run.add("fetch", t=at, wall=ns, **(known | fields))


def loaders_of(run: Run) -> list[Loader]:
    found = load_run(run.write()).get(Loaders)
    assert found is not None
    return list(found.loaders)


def test_fetches_of_the_training_process(tmp_path: Path) -> None:
    run = Run(tmp_path)
    loader(run, batch_size=8, at=["/u/train.py", 5, "<module>"])
    fetch(run, run.now - 500 * MS, wall=90)  # while warming up
    run.steps(30, plain)
    for number in range(30):
        fetch(run, run.now - (number + 5) * MS)
    fetch(run, run.now + 500 * MS, wall=90)  # in another window
    only = loaders_of(run)[0]
    assert only.fetch_count == 30
    assert set(only.fetch_ns) == {4 * MS}
    assert (only.load_ns, only.load_cpu_ns, only.collate_ns) == (2 * MS, 1 * MS, 2 * MS)
    assert only.blocked_frac() == pytest.approx(0.25)
    assert only.created_at is not None
    assert only.created_at.line == 5


def test_a_counter_that_the_system_lacks_stays_unmeasured(tmp_path: Path) -> None:
    run = Run(tmp_path).steps(30, plain)
    loader(run)
    fetch(run, run.now - 50 * MS, read=None, rchar=0, load_cpu=None)
    only = loaders_of(run)[0]
    assert only.read_bytes is None
    assert only.rchar_bytes == 0
    assert only.blocked_frac() is None


@pytest.mark.parametrize(("read", "processing"), [(4096, 0.2), (0, 1.0), (2048, 0.6)])
def test_the_kernels_time_for_reads_that_miss_the_cache_is_storage(
    tmp_path: Path, read: int, processing: float
) -> None:
    run = Run(tmp_path).steps(30, plain)
    loader(run)
    kernel = 800_000
    fetch(run, run.now - 50 * MS, load_cpu=MS, read=read, rchar=4096, kernel=kernel)
    assert loaders_of(run)[0].load_cpu_ns == pytest.approx(processing * MS)


@pytest.mark.parametrize(
    ("read", "rchar", "left_ms"),
    [(0, 4000, 3), (4000, 4000, 1), (1000, 4000, 2.5), (4000, 0, 1), (None, None, 3)],
    ids=["cached", "storage", "a quarter from storage", "mapped file", "uncounted"],
)
def test_kernel_time_of_reads_from_storage_is_no_preprocessing(
    tmp_path: Path, read: int | None, rchar: int | None, left_ms: float
) -> None:
    """Loading took 3 ms on a core, 2 of them in the kernel."""
    run = Run(tmp_path).steps(30, plain)
    loader(run)
    fetch(run, run.now - 50 * MS, load_cpu=3 * MS, kernel=2 * MS, read=read, rchar=rchar)
    assert loaders_of(run)[0].load_cpu_ns == left_ms * MS


def test_spawned_workers_are_known_by_their_pid(tmp_path: Path) -> None:
    """They cannot know their loader's number; the iterator that started them does."""
    worker = Run(tmp_path, pid=101)
    worker.lines = [line for line in worker.lines if line["kind"] == "process"]
    stranger = Run(tmp_path, pid=555)
    stranger.lines = [line for line in stranger.lines if line["kind"] == "process"]
    run = Run(tmp_path)
    loader(run, TRAIN)
    loader(run, VALID, num_workers=1)
    run.add("iterator", t=run.now, loader=VALID, pids=[101], start_ns=7 * MS)
    run.add("iterator", t=run.now, loader=VALID, pids=[101], start_ns=1 * MS, started=False)
    run.steps(30, plain)
    for process in (worker, stranger):
        fetch(process, run.now - 50 * MS, loader=-1, worker=0)
        process.write()
    train, valid = loaders_of(run)
    assert (train.fetch_count, valid.fetch_count) == (0, 1)
    assert valid.worker_start_ns == (7 * MS,)


def test_batches_are_weighed_over_the_whole_run(tmp_path: Path) -> None:
    """Only some are weighed, perhaps none in the clean window."""
    run = Run(tmp_path)
    loader(run)
    fetch(run, run.now - 500 * MS, bytes=3000, dtypes={"float32": 2000, "int64": 1000})
    fetch(run, run.now - 400 * MS, bytes=1000, dtypes={"float32": 1000})
    run.steps(30, plain)
    fetch(run, run.now - 50 * MS)
    only = loaders_of(run)[0]
    assert only.fetch_count == 1
    assert only.batch_bytes == 2000
    assert only.batch_dtypes == {"float32": 1500, "int64": 500}


def test_loaders_that_are_read_one_batch_ahead_of_the_model(tmp_path: Path) -> None:
    """``accelerate`` asks for the batch after next before the model sees this one."""

    def step(run: Run, number: int) -> None:
        if number % 5 == 0:
            run.batch(1, VALID)
            for _ in range(3):
                run.batch(1, VALID)  # the last of them finds the loader at its end
                run.forward(2, train=False, grad=False)
            run.batch(1, TRAIN)
        plain(run)

    run = Run(tmp_path)
    loader(run, TRAIN)
    loader(run, VALID)
    assert [x.role for x in loaders_of(run.steps(30, step))] == ["train", "eval"]
