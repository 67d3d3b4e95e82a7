"""What a DistributedDataParallel was told, and what its backward passes did."""

import json
import os
from pathlib import Path

import pytest

from tdiag.evidence.from_run import load_run
from tdiag.evidence.ranks import Ddp
from tests import warm

from .harness import environment

CODE = """
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
torch.manual_seed(0)
net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 1))
net.register_buffer("table", torch.ones(100))
net.register_buffer("queue", torch.zeros(2_200_000))  # too large to be read whole
model = DistributedDataParallel(net, find_unused_parameters=True, bucket_cap_mb=2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(40):
    optimizer.zero_grad()
    for part in range(3):
        if part < 2:
            with model.no_sync():
                model(torch.randn(8, 4)).mean().backward()
        else:
            model(torch.randn(8, 4)).mean().backward()
    optimizer.step()
    net.queue[100_001 + step] = 1
dist.destroy_process_group()
import time; time.sleep(0.5)  # torch aborts a Python that ends before gloo's threads
"""


@pytest.mark.training
def test_settings_unused_parameters_and_synchronised_backwards(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(CODE)
    run_dir = tmp_path / "run"
    env = environment(run_dir, {**os.environ, "OMP_NUM_THREADS": "1"}, windows=["baseline", "ops"])
    ranks = warm.run_ranks(["script.py"], tmp_path, env)
    assert [rank.returncode for rank in ranks] == [0, 0], ranks[0].stderr + ranks[1].stderr
    (run_dir / "run.json").write_text(json.dumps({"schema": 1, "command": ["torchrun"]}))
    evidence = load_run(run_dir)
    ddp = evidence.get(Ddp)
    assert ddp, evidence.notes
    assert ddp.find_unused_parameters and not ddp.static_graph
    assert (ddp.unused_parameters, ddp.bucket_bytes) == (0, 2 * 1024 * 1024)
    assert ddp.parameter_bytes == 4 * (4 * 8 + 8 + 2 * 8 + 8 + 1)
    # The batch norm's averages and its counter change in each forward.
    assert (ddp.buffer_bytes, ddp.constant_buffer_bytes) == (
        4 * 2 * 8 + 8 + 400 + 4 * 2_200_000,
        400,
    )
    assert (ddp.backwards, ddp.synced) == (3, 1)
    assert not [note.text for note in evidence.notes if "probe failed" in note.text]
