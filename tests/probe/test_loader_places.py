"""Where a DataLoader was made: by the user, also if a library makes it again."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from tdiag.evidence.feeding import Loaders
from tdiag.probe.core import Probe
from tdiag.probe.known_loaders import KnownLoaders

from .harness import watch_code

LIBRARY = """
from torch.utils.data import DataLoader
class Shard(DataLoader):
    def __init__(self, loader):
        super().__init__(loader.dataset, batch_sampler=loader.batch_sampler)
def prepare(loader):
    return Shard(loader)
def make(data):
    return DataLoader(data, batch_size=4)
"""

SCRIPT = """
import sys
import torch
from torch.utils.data import DataLoader, TensorDataset
sys.path.insert(0, "site-packages")
import sharding
data = TensorDataset(torch.randn(4000, 8))
loader = DataLoader(data, batch_size=4, shuffle=True)  # HERE
again = {again}
net = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
for epoch in range(3):
    for (x,) in again:
        optimizer.zero_grad()
        net(x).mean().backward()
        optimizer.step()
"""


def made_at(folder: Path, again: str) -> int:
    (folder / "site-packages").mkdir()
    (folder / "site-packages" / "sharding.py").write_text(LIBRARY)
    run = watch_code(folder, SCRIPT.format(again=again), windows=["baseline"], short=True)
    assert run.returncode == 0 and run.of("failure") == []
    loaders = run.evidence().get(Loaders)
    train = loaders.train() if loaders else None
    assert train is not None and train.created_at is not None
    return train.created_at.line


def test_a_library_makes_it_again(tmp_path: Path) -> None:
    assert made_at(tmp_path, "sharding.prepare(loader)") == 8


def test_a_library_makes_one_of_another_data_set(tmp_path: Path) -> None:
    assert made_at(tmp_path, "sharding.make(TensorDataset(torch.randn(4000, 8)))") == 9


def test_the_user_makes_a_second_one(tmp_path: Path) -> None:
    assert made_at(tmp_path, "DataLoader(data, batch_size=8)") == 9


EPOCHS = """
import torch
from torch.utils.data import DataLoader, TensorDataset
data = TensorDataset(torch.randn(40, 8))
net = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
def make():
    return DataLoader(data, batch_size=4, shuffle=True)
kept, twins = [], [make(), make()]
for epoch in range(40):
    {made}
    for (x,), *_ in {batches}:
        optimizer.zero_grad()
        net(x).mean().backward()
        optimizer.step()
"""


@pytest.mark.parametrize(
    ("made", "batches", "number"),
    [
        ("loader = make()", "zip(loader)", 1),
        ("kept.append(make())", "zip(kept[-1])", 1),  # as Accelerate keeps them
        ("", "zip(*twins)", 2),  # made before either was read
    ],
)
def test_a_loader_that_is_made_again_for_each_epoch_is_one(
    made: str, batches: str, number: int, tmp_path: Path
) -> None:
    script = EPOCHS.format(made=made, batches=batches)
    run = watch_code(tmp_path, script, windows=["baseline"], short=True)
    assert run.returncode == 0 and run.of("failure") == []
    loaders = run.evidence().get(Loaders)
    assert loaders is not None and len(loaders.loaders) == number
    assert (loaders.loaders[0].made > 1) is (number == 1)


class Recorder:
    def __init__(self) -> None:
        self.written: list[int] = []

    def write(self, kind: str, **fields: Any) -> None:
        self.written.append(fields["id"])


def test_loaders_that_are_only_labelled_between_windows_are_one() -> None:
    """As they are while no pass is noted: kept, and made again for each epoch."""
    known = KnownLoaders(cast(Probe, SimpleNamespace(recorder=Recorder())))
    data, kept = TensorDataset(torch.randn(40, 8)), []

    def make(known: KnownLoaders) -> DataLoader[Any]:
        kept.append(DataLoader(data, batch_size=4))
        known.made(kept[-1])
        return kept[-1]

    assert [known.number(make(known)) for _ in range(3)] == [0, 0, 0]
    later = KnownLoaders(known.probe)
    later.take_over(known)
    assert later.number(make(later)) == 0
    twins = [make(later), make(later)]  # before either is read
    assert [later.number(twin) for twin in twins] == [0, 1]
