"""DataLoaders whose class has an ``__iter__`` of its own, as torchdata's StatefulDataLoader has."""

from __future__ import annotations

from pathlib import Path

import pytest

from tdiag.evidence.feeding import Loaders
from tdiag.evidence.steps import Phases

from .harness import watch_code

LIBRARY = """
import itertools
from torch.utils.data import DataLoader
from torch.utils.data import dataloader
class Stateful(DataLoader):
    def __init__(self, dataset, batch_size, num_workers=0, persistent_workers=False):
        plain = DataLoader(dataset, batch_size, shuffle=True, num_workers=num_workers,
                           persistent_workers=persistent_workers)
        self.__dict__.update(plain.__dict__)
        self.check_worker_number_rationality()
    def __iter__(self):
        if self._iterator is not None and self.persistent_workers:
            self._iterator._reset(self)
        else:
            self._iterator = (Workers if self.num_workers else Single)(self)
        return self._iterator
class Moving(DataLoader):
    def __iter__(self):
        for batch in super().__iter__():
            yield batch * 1
class Single(dataloader._SingleProcessDataLoaderIter):
    def __next__(self):
        return super().__next__()
class Workers(dataloader._MultiProcessingDataLoaderIter):
    pass
"""
SCRIPT = """
import sys
import torch
sys.path.insert(0, "site-packages")
from stateful import Stateful
class Slow(torch.utils.data.Dataset):
    def __len__(self):
        return 64
    def __getitem__(self, i):
        x = torch.linspace(0, 1, 4000)
        for _ in range(20):
            x = torch.sin(x)
        return x[:8]
def main():
    loader = Stateful(Slow(), 8, OPTIONS)  # HERE
    net = torch.nn.Linear(8, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    for epoch in range(60):
        for x in loader:
            optimizer.zero_grad()
            net(x).mean().backward()
            optimizer.step()
if __name__ == "__main__":
    main()
"""


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("Stateful", "num_workers=0"),
        ("Stateful", "num_workers=1"),
        ("Stateful", "num_workers=1, persistent_workers=True"),
        ("Moving", "num_workers=0"),  # calls torch's __iter__
    ],
)
def test_waits_fetches_and_passes_are_seen(kind: str, options: str, tmp_path: Path) -> None:
    (tmp_path / "site-packages").mkdir()
    (tmp_path / "site-packages" / "stateful.py").write_text(LIBRARY)
    code = SCRIPT.replace("OPTIONS", options).replace("Stateful", kind)
    run = watch_code(tmp_path, code, windows=["baseline"], short=True)
    assert run.returncode == 0 and run.of("failure") == [], run.err
    evidence = run.evidence()
    loaders, phases = evidence.get(Loaders), evidence.get(Phases)
    train = loaders.train() if loaders else None
    assert train is not None and phases is not None and train.fetch_count > 0
    assert train.created_at is not None and train.created_at.line == 15
    assert phases.wall_ns["data_wait"] > phases.wall_ns.get("prepare", 0.0)
    assert len(run.of("loader")) == 1
    passes = run.of("iterator")
    assert len(passes) > 2 and {record["loader"] for record in passes} == {0}
    assert [record["new"] for record in passes] == [True] + [False] * (len(passes) - 1)
    last = max(run.of("steps"), key=lambda record: record["i"])
    steps = last["i"] + last["n"]
    begun = sum(record["t"] <= last["t"] for record in passes)  # the script goes on a while
    assert begun in (steps // 8, steps // 8 + 1, steps // 8 + 2)
