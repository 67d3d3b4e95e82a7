"""What the probe sees of the threads that libraries start in DataLoader workers."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tdiag.evidence.feeding import Loader, Loaders
from tdiag.evidence.machine import Threads
from tdiag.probe import thread_pools
from tdiag.probe.wire import ENDED

from .harness import watch_code

SCRIPT = """
import torch
from concurrent.futures import ThreadPoolExecutor
from torch import nn
from torch.utils.data import DataLoader, Dataset
POOL = ThreadPoolExecutor(1)
class Data(Dataset):
    def __len__(self):
        return 100_000
    def __getitem__(self, i):
        {work}
        return torch.ones(4)
if __name__ == "__main__":
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for x in DataLoader(Data(), batch_size=4, num_workers=1):
        optimizer.zero_grad()
        model(x).sum().backward()
        optimizer.step()
"""
# A pool of a library in C; torch's own is at hand.
POOL = "torch.set_num_threads(3); torch.ones(1 << 20).exp_()"
OWN = "torch.ones(1 << 18).exp_()"
PYTHONS = "POOL.submit(lambda: torch.ones(1 << 20).exp_().sum()).result()"


def fetched(folder: Path, work: str) -> Loader:
    script = SCRIPT.format(work=work)
    run = watch_code(folder, script, windows=["baseline"], profiling=True, steps=60)
    assert run.returncode == 0 and run.of("failure") == []
    loaders = run.evidence().get(Loaders)
    loader = loaders.train() if loaders else None
    assert loader is not None
    return loader


def test_a_librarys_pool_is_counted_with_its_cpu_time(tmp_path: Path) -> None:
    loader = fetched(tmp_path, POOL)
    assert loader.pool_threads is not None and loader.pool_threads >= 2
    assert loader.pool_cpu_ns


def test_a_worker_without_pools_has_none(tmp_path: Path) -> None:
    loader = fetched(tmp_path, OWN)
    assert loader.pool_threads == 0
    assert loader.pool_cpu_ns is not None and loader.load_cpu_ns is not None
    assert loader.pool_cpu_ns < loader.load_cpu_ns


def test_threads_that_python_started_are_the_users_own(tmp_path: Path) -> None:
    loader = fetched(tmp_path, PYTHONS)
    assert loader.pool_threads == 0
    assert loader.pool_cpu_ns


THREADED = """
import threading, time, torch
def work():
    until = time.thread_time() + 0.02
    while time.thread_time() < until: pass
    done.set()
    threading.Event().wait()
done = threading.Event()
threading.Thread(target=work, daemon=True).start()
done.wait()
model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(60):
    optimizer.zero_grad()
    model(torch.ones(2, 2)).mean().backward()
    optimizer.step()
"""


def test_each_window_says_how_long_other_threads_of_python_have_worked(tmp_path: Path) -> None:
    run = watch_code(tmp_path, THREADED, windows=["baseline"])
    counted = [window["threads"] for window in run.of("window")]
    assert counted and all(threads.pop(str(ENDED)) < 20_000_000 for threads in counted)
    assert all(len(threads) == 1 for threads in counted)
    assert all(ns >= 20_000_000 for threads in counted for ns in threads.values())
    own = [window["cpu"] for window in run.of("window")]
    assert own == sorted(own) and own[0] > 0


BESIDE = """
import numpy
import torch
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(60):
    optimizer.zero_grad()
    x = numpy.ones((4, 4), "float32") @ numpy.eye(4, dtype="float32")
    model(torch.from_numpy(x)).sum().backward()
    optimizer.step()
"""


@pytest.mark.parametrize("threads", ["1", "2"])
def test_the_pools_of_libraries_in_the_training_process(
    tmp_path: Path, threads: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", threads)
    run = watch_code(tmp_path, BESIDE, cold=True, windows=["baseline"], profiling=True, steps=60)
    assert run.returncode == 0 and run.of("failure") == []
    found = run.evidence().get(Threads)
    assert found is not None
    pools = {name: count for name, count in found.pools.items() if "openblas" in name}
    if not pools:
        pytest.skip("NumPy is not built with OpenBLAS")
    assert set(pools.values()) == {min(int(threads), os.cpu_count() or 1)}


def test_libraries_that_are_gone_or_not_listed_are_no_fault(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Replaced on disk since they were loaded; or no Linux."""
    gone = ["/gone/libopenblas.so (deleted)"]
    monkeypatch.setattr(thread_pools, "_loaded", lambda: gone)
    assert not [name for name in thread_pools.counts() if "openblas" in name]
    monkeypatch.undo()

    def unlisted(*_: object, **__: object) -> None:
        raise FileNotFoundError

    monkeypatch.setattr("builtins.open", unlisted)
    assert thread_pools._loaded() == []
