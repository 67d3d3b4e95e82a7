"""Real jobs of two and four gloo ranks, under the probe alone: what is said of each kind.

Nothing beside the ranks samples the machine, so the kinds are told apart by what was counted.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tdiag.diagnose import diagnose
from tdiag.evidence.from_run import load_run
from tdiag.evidence.ranks import Collectives
from tdiag.model.diagnosis import Diagnosis, Finding
from tests import warm
from tests.probe.harness import environment

CODE = """
import sys
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler

kind = sys.argv[1]
dist.init_process_group("gloo")
torch.set_num_threads(1)
late = dist.get_rank() == dist.get_world_size() - 1


class Clips(Dataset):
    def __len__(self):
        return 10_000_000

    def __getitem__(self, index):
        long = kind == "longer" and late and index % 3
        return torch.full((320 if long else 16, 64), index / len(self))


def pad(samples):
    return nn.utils.rnn.pad_sequence(samples, batch_first=True)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(64, 256), nn.Linear(256, 10)
        self.more = torch.randn(256, 64) / 1000

    def forward(self, clips):
        hidden = torch.relu(self.first(clips))
        if kind == "compute" and late:
            for _ in range(12):
                hidden = hidden + torch.tanh(hidden @ self.first.weight) @ self.more.t()
        return self.last(hidden)


model = Net()
if kind == "sharded":
    from torch.distributed.fsdp import fully_shard

    mesh = dist.init_device_mesh("cpu", (dist.get_world_size(),))
    for layer in (model.first, model.last, model):
        fully_shard(layer, mesh=mesh)
else:
    model = DistributedDataParallel(model, find_unused_parameters=kind == "searches")
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
clips = Clips()
batch = 256 if kind == "samples" and late else 32
loader = DataLoader(clips, batch_size=batch, sampler=DistributedSampler(clips), collate_fn=pad)
for number, clip in enumerate(loader, 1):
    model(clip).square().mean().backward()
    if kind == "accumulates" and number % 4:
        continue
    optimizer.step()
    optimizer.zero_grad()
"""


def line_of(words: str) -> int:
    return next(n for n, line in enumerate(CODE.splitlines(), 1) if words in line)


def diagnosed(kind: str, folder: Path, count: int = 2) -> tuple[Diagnosis, Collectives | None]:
    (folder / "train.py").write_text(CODE)
    env = environment(
        folder / "run", {**os.environ, "OMP_NUM_THREADS": "1"},
        windows=["baseline", "trace", "ops"], profiling=True, time_budget_s=10.0,
    )  # fmt: skip
    ranks = warm.run_ranks(["train.py", kind], folder, env, count=count)
    assert [rank.returncode for rank in ranks] == [0] * count, [rank.stderr for rank in ranks]
    assert not any("tdiag" in line for rank in ranks for line in rank.stderr.splitlines()
                   if "/site-packages/" not in line)  # fmt: skip
    run = {"schema": 1, "command": ["torchrun", "train.py"], "script": "train.py"}
    (folder / "run" / "run.json").write_text(json.dumps(run))
    evidence = load_run(folder / "run")
    found = diagnose(evidence)
    assert len(found.ranks) == count, found.abstained
    assert not any("probe failed" in note.text for note in found.notes)
    return found, evidence.get(Collectives)


def finding(code: str, found: Diagnosis) -> Finding:
    (one,) = (f for f in found.findings if f.code == code)
    return one


def codes(found: Diagnosis) -> set[str]:
    return {f.code for f in found.findings}


@pytest.mark.training
@pytest.mark.parametrize("count", [2, 4])
def test_more_samples_are_named_at_the_line_that_deals_them_out(count: int, tmp_path: Path) -> None:
    found, _ = diagnosed("samples", tmp_path, count)
    late = finding("TD902", found)
    assert late.summary.startswith(f"Rank {count - 1} makes the other")
    assert "Its batches have more data: 256 samples, the others' 32." in late.summary
    assert late.location and late.location.line == line_of("loader = DataLoader")


@pytest.mark.training
def test_longer_samples_count_with_their_padding(tmp_path: Path) -> None:
    found, _ = diagnosed("longer", tmp_path)
    late = finding("TD902", found)
    assert "2.50 MiB, the others' 128 KiB for as many samples" in late.summary
    assert late.location and late.location.line == line_of("loader = DataLoader")


@pytest.mark.training
def test_more_work_on_as_much_data_is_counted(tmp_path: Path) -> None:
    found, _ = diagnosed("compute", tmp_path)
    late = finding("TD902", found)
    assert late.summary.startswith("Rank 1 makes the other rank wait")
    assert "It has more work: " in late.summary


@pytest.mark.training
def test_four_ranks_that_do_the_same_are_not_told_apart(tmp_path: Path) -> None:
    found, _ = diagnosed("balanced", tmp_path, 4)
    assert not codes(found) & {"TD902", "TD904", "TD905"}
    assert not any(rank.late for rank in found.ranks)


@pytest.mark.training
@pytest.mark.parametrize(("kind", "code"), [("searches", "TD904"), ("accumulates", "TD905")])
def test_what_ddp_does_for_nothing_is_named(kind: str, code: str, tmp_path: Path) -> None:
    found, _ = diagnosed(kind, tmp_path)
    assert codes(found) & {"TD904", "TD905"} == {code}
    assert finding(code, found).location


@pytest.mark.training
def test_sharded_parameters_are_gathered_by_fsdp_not_by_the_script(tmp_path: Path) -> None:
    found, collectives = diagnosed("sharded", tmp_path)
    assert collectives is not None
    names = {
        line.name for line in collectives.lines if line.by.startswith("torch.distributed.fsdp")
    }
    assert any(name.startswith("all_gather") for name in names)
    assert any(name.startswith("reduce_scatter") for name in names)
    assert not codes(found) & {"TD902", "TD904", "TD905"}
    exposed = finding("TD903", found)
    assert "FSDP" in exposed.fix.text and "async_op" not in exposed.fix.text
