"""Ranks over NCCL, each on a device of its own."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(torch.cuda.device_count() < 2, reason="fewer than two CUDA devices"),
]
TRAIN = """
import time
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("nccl")
rank = dist.get_rank()
torch.cuda.set_device(rank)
model = DistributedDataParallel(torch.nn.Linear(2048, 2048).cuda(), device_ids=[rank])
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(10_000):
    if LATE(rank, step):
        time.sleep(0.03)
    optimizer.zero_grad()
    model(torch.randn(512, 2048, device="cuda")).mean().backward()
    optimizer.step()
    torch.cuda.synchronize()
"""


def diagnose(folder: Path, late: str) -> dict:
    script, output = folder / "train.py", folder / "diagnosis.json"
    script.write_text(f"LATE = lambda rank, step: {late}\n{TRAIN}")
    subprocess.run(
        [sys.executable, "-m", "tdiag", "run", "--profiling", "--quiet", "-o", str(output), "--",
         sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2",
         str(script)],
        cwd=folder, check=True, timeout=300,
    )  # fmt: skip
    return json.loads(output.read_text())


def test_the_late_rank_is_judged(tmp_path: Path) -> None:
    found = diagnose(tmp_path, "rank == 1")
    assert found["verdict"]["summary"].startswith("Rank 1 makes the other rank wait")


def test_a_late_rank_that_changes_is_reported(tmp_path: Path) -> None:
    """Each at every other step; a trace holds three steps, of which one rank is late at two."""
    found = diagnose(tmp_path, "rank == step % 2")
    assert "TD906" in {f["code"] for f in found["findings"]}
