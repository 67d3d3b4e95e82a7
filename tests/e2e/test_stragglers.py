"""Real jobs of two ranks: the rank that the other waits for, its own cause, and the line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.launch.harness import NO_ROOF

CODE = """
import atexit
import os
import subprocess
import sys
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler

kind = sys.argv[1]
dist.init_process_group("gloo")
torch.set_num_threads(1)
late = dist.get_rank() == 1
if kind == "crowded":
    os.sched_setaffinity(0, [sorted(os.sched_getaffinity(0))[dist.get_rank()]])
    if late:
        busy = "import time; end = time.time() + 40; all(iter(lambda: time.time() < end, False))"
        quiet = subprocess.DEVNULL
        for _ in range(3):  # more than what other tests beside this one put on rank 0's core
            neighbour = subprocess.Popen([sys.executable, "-c", busy], stdout=quiet, stderr=quiet)
            atexit.register(neighbour.kill)


class Clips(Dataset):
    def __len__(self):
        return 10_000_000

    def __getitem__(self, index):
        clip = torch.full((256,), index / len(self))
        if kind == "loader" and late:
            clip = torch.tensor([value * 1.0 for _ in range(20) for value in clip.tolist()][:256])
        return clip, index % 10


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(256, 512), nn.Linear(512, 10)
        self.more = torch.randn(512, 256) / 1000

    def forward(self, clips):
        hidden = torch.relu(self.first(clips))
        if kind == "crowded" or (kind == "compute" and late):
            for _ in range(30):
                hidden = hidden + torch.tanh(hidden @ self.first.weight) @ self.more.t()
        return self.last(hidden)


model = DistributedDataParallel(Net())
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
clips = Clips()
batch = 256 if kind == "data" and late else 32
loader = DataLoader(clips, batch_size=batch, sampler=DistributedSampler(clips))
for clip, label in loader:
    nn.functional.cross_entropy(model(clip), label).backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def line_of(words: str) -> int:
    return next(n for n, line in enumerate(CODE.splitlines(), 1) if words in line)


def diagnosed(kind: str, folder: Path) -> dict[str, Any]:
    (folder / "train.py").write_text(CODE)
    torchrun = Path(sys.executable).with_name("torchrun")
    done = subprocess.run(
        [
            *(sys.executable, "-m", "tdiag", "run", "--profiling", "--time-budget", "15", "--json"),
            *("--", torchrun, "--standalone", "--nproc-per-node", "2", "train.py", kind),
        ],
        cwd=folder, capture_output=True, text=True, timeout=280, check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(NO_ROOF)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    assert len(found["ranks"]) == 2, found["abstained"]
    return found


def straggler(found: dict[str, Any]) -> dict[str, Any]:
    """The one finding about a late rank, which is rank 1."""
    (finding,) = (f for f in found["findings"] if f["code"] == "TD902")
    assert finding["summary"].startswith("Rank 1 makes the other rank wait")
    assert found["verdict"]["summary"].startswith(finding["summary"])
    assert [rank["late"] for rank in found["ranks"]] == [False, True]
    return finding  # type: ignore[no-any-return]


@pytest.mark.training
def test_a_slow_loader_is_named_with_its_line_and_its_finding(tmp_path: Path) -> None:
    finding = straggler(diagnosed("loader", tmp_path))
    assert "more waiting for data" in finding["summary"]
    assert finding["location"]["line"] == line_of("for _ in range(20)")
    assert "The first finding about it: TD2" in finding["fix"]["text"]


@pytest.mark.slow
def test_more_work_on_as_much_data_is_named_with_its_line(tmp_path: Path) -> None:
    finding = straggler(diagnosed("compute", tmp_path))
    assert "It has more work: " in finding["summary"]
    assert finding["location"]["line"] == line_of("self.more.t()")


@pytest.mark.training
def test_more_data_is_named_at_the_line_that_deals_it_out(tmp_path: Path) -> None:
    finding = straggler(diagnosed("data", tmp_path))
    assert "Its batches have more data: 256 samples, the others' 32." in finding["summary"]
    assert finding["location"]["line"] == line_of("loader = DataLoader")


@pytest.mark.training
@pytest.mark.slow  # three programs want two cores, for a minute
@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs a core for each rank")
def test_a_rank_that_shares_its_core_is_not_blamed_on_the_script(tmp_path: Path) -> None:
    finding = straggler(diagnosed("crowded", tmp_path))
    assert "per step for a free core, theirs" in finding["summary"]
    assert finding["location"] is None


@pytest.mark.training
def test_ranks_that_do_the_same_are_not_told_apart(tmp_path: Path) -> None:
    # Beside other tests one of them may truly be late: it lacks a core, which has no line. If it
    # lacks one for a part of the time only, a line may be named: then what disturbed it is over
    # in another run.
    for attempt in "abc":
        (tmp_path / attempt).mkdir()
        found = diagnosed("balanced", tmp_path / attempt)
        late = [f for f in found["findings"] if f["code"] == "TD902"]
        if not any(f["location"] for f in late):
            break
    assert all(f["location"] is None for f in late)
    assert all("free core" in f["summary"] or "of their speed" in f["summary"] for f in late)
    assert late or not any(rank["late"] for rank in found["ranks"])
    assert late or "Rank" not in found["verdict"]["summary"]
