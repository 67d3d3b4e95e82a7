"""Threads of libraries in DataLoader workers."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tdiag.probe.trial.change import MOST_SAID
from tdiag.trial.said import heard
from tests.probe.harness import watch_code

WORKERS = """
import sys, torch
from torch.utils.data import DataLoader, Dataset, get_worker_info
class Pool:
    threads = {before}
    def getNumThreads(self): return Pool.threads
    def setNumThreads(self, number): Pool.threads = number
sys.modules["cv2"] = cv2 = Pool()
class Data(Dataset):
    def __len__(self): return 4
    def __getitem__(self, index):
        return torch.tensor([torch.get_num_threads(), cv2.getNumThreads(), self.mine])
def mine(worker): get_worker_info().dataset.mine = 7
seen = [batch[0].tolist() for batch in DataLoader(Data(), num_workers=1, worker_init_fn=mine)]
sys.stdout.write(str((seen, cv2.getNumThreads())))
"""


@pytest.mark.parametrize(
    ("wanted", "before", "shown", "told"),
    [
        ("1", 8, "([[1, 8, 7], [1, 1, 7], [1, 1, 7], [1, 1, 7]], 8)", "cv2 8 → 1"),
        ("3", 3, "([[1, 3, 7], [3, 3, 7], [3, 3, 7], [3, 3, 7]], 3)", "torch 1 → 3"),
    ],
)
def test_libraries_of_workers_get_as_many_threads_as_asked_for(
    wanted: str, before: int, shown: str, told: str, tmp_path: Path
) -> None:
    """The script's own worker_init_fn, and the process that trains, stay as they are."""
    trial = [("loader.worker_threads", wanted)]
    watched = watch_code(tmp_path, WORKERS.format(before=before), windows=[], trial=trial)
    assert (watched.returncode, watched.out) == (0, shown), watched.err
    assert any(told in r.get("what", "") for r in watched.of("trial")), watched.of("trial")


# NumPy's OpenBLAS has a prefix and a suffix in the names of its functions.
OPENBLAS = """
import ctypes, pathlib, numpy
from tdiag.probe.thread_pools import limit
(file,) = pathlib.Path(numpy.__file__).parents[1].glob("numpy.libs/*openblas*")
names = [f"{p}openblas_get_num_threads{s}" for p in ("", "scipy_") for s in ("", "64_")]
blas = ctypes.CDLL(str(file))
count = next(getattr(blas, name) for name in names if hasattr(blas, name))
for threads in (2, 1):
    changed = limit(threads)
    assert count() == threads, (count(), changed)
assert len(changed) == 1 and changed[0].endswith("openblas 2 → 1"), changed
assert limit(1) == []
"""


def test_a_pool_in_c_is_set_by_the_librarys_own_functions() -> None:
    done = subprocess.run(
        [sys.executable, "-c", OPENBLAS], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_what_workers_say_in_each_epoch_counts_once(tmp_path: Path) -> None:
    """A process that had more to say than it may would hide where other changes applied."""
    (tmp_path / "events").mkdir()
    line = {
        "kind": "trial",
        "change": "loader.worker_threads",
        "state": "applied",
        "what": "threads",
    }
    for pid in range(2 * MOST_SAID):
        (tmp_path / "events" / f"{pid}.jsonl").write_text(json.dumps(line) + "\n")
    said = heard([tmp_path])
    assert said.applied == ("threads",) and len(said.places) == 1
