"""Trainings from 0.3 to 300 ms a step, of the kinds that a gate may take for something else.

Usage: ``python gate_programs.py NAME``; runs until it is ended. ``gate.py nothing`` commits this
file to a repository of its own and checks it there. The times are the shortest steps seen on the
2-core machine of the benchmarks beside other work; a row of ``gate.jsonl`` has the measured one.
"""

from __future__ import annotations

import itertools
import sys
import time
from collections.abc import Callable, Iterable, Iterator

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

UNITS = 100  # of work in a step of `units`; ``gate.py stored`` plants a slow-down here
SHAPE = 144  # 144³ multiplications and additions on one core: about 0.1 ms

Batch = tuple[Tensor, Tensor]


def nothing() -> None:
    """What `trials.py` freezes: it costs nothing."""


def train(
    model: nn.Module, data: Iterable[Batch], threads: int, optimizer: type = torch.optim.SGD,
    before: Callable[[], object] = nothing,
) -> None:  # fmt: skip
    """``before`` is done within each step."""
    torch.set_num_threads(threads)
    chosen = optimizer(model.parameters(), lr=1e-4)
    for x, wanted in data:
        before()
        loss = (model(x) - wanted).square().mean()
        chosen.zero_grad()
        loss.backward()
        chosen.step()


def same(*shape: int, wanted: tuple[int, ...] = ()) -> Iterator[Batch]:
    """One batch for ever."""
    return itertools.repeat((torch.randn(shape), torch.randn(wanted or shape)))


def layers(width: int, depth: int = 2) -> nn.Module:
    parts = [(nn.Linear(width, width), nn.ReLU()) for _ in range(depth)]
    return nn.Sequential(*itertools.chain(*parts))


def compiled(model: nn.Module) -> nn.Module:
    model.compile()
    return model


def convolutions(channels: int) -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, channels, 3), nn.ReLU(), nn.Conv2d(channels, 8, 3),
                         nn.Flatten(), nn.LazyLinear(10))  # fmt: skip


class Made(Dataset[Batch]):
    """Samples that Python makes: ``loops`` additions each."""

    def __init__(self, loops: int) -> None:
        self.loops = loops

    def __len__(self) -> int:
        return 1 << 20

    def __getitem__(self, index: int) -> Batch:
        value = sum(i & 7 for i in range(self.loops)) * 1e-9
        return torch.full((64,), value), torch.zeros(64)


def loaded(loops: int, workers: int) -> DataLoader[Batch]:
    return DataLoader(Made(loops), batch_size=16, num_workers=workers)


def ragged() -> Iterator[Batch]:
    """Batches of 1 to 32 times the rows, as sentences have lengths."""
    draw = torch.Generator().manual_seed(0)
    while True:
        rows = 32 * int(torch.randint(1, 33, (), generator=draw))
        yield torch.randn(rows, 256), torch.randn(rows, 256)


def buffers() -> None:
    """A fresh 32 MB each, written once and given back."""
    for _ in range(4):
        torch.empty(8 << 20).fill_(1.0)


def units() -> None:
    a = torch.randn(SHAPE, SHAPE)
    for _ in range(UNITS):
        a @ a


def checkpoints() -> Callable[[], None]:
    """Every twentieth step takes 5 ms more."""
    steps = itertools.count()
    return lambda: time.sleep(0.005) if next(steps) % 20 == 0 else None


def attention(width: int, depth: int) -> nn.Module:
    layer = nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.0, batch_first=True)
    return nn.TransformerEncoder(layer, depth)


adam = torch.optim.Adam
PROGRAMS: dict[str, Callable[[], None]] = {
    "tiny": lambda: train(layers(16), same(8, 16), 1),  # 0.35 ms
    "adam": lambda: train(layers(256), same(64, 256), 1, adam),  # 1.6 ms
    "adam-2-threads": lambda: train(layers(256), same(64, 256), 2, adam),  # 1 ms
    "checkpoints": lambda: train(layers(256), same(64, 256), 1, adam, checkpoints()),  # 2 ms
    "workers": lambda: train(layers(64), loaded(500, 2), 1),  # 2.5 ms
    "ragged": lambda: train(layers(256), ragged(), 2),  # 1 to 7 ms
    "compiled": lambda: train(compiled(layers(256, 4)), same(128, 256), 2),  # 4 ms
    "python": lambda: train(layers(64), loaded(5_000, 0), 1),  # 5 ms, no worker
    "convolution": lambda: train(convolutions(16), same(32, 3, 32, 32, wanted=(32, 10)), 2),  # 6 ms
    "starved": lambda: train(layers(64), loaded(20_000, 1), 1),  # 6 to 20 ms, waits for its worker
    "units": lambda: train(layers(64), same(8, 64), 1, before=units),  # 8 ms
    "attention": lambda: train(attention(128, 3), same(8, 64, 128), 2),  # 50 ms
    "buffers": lambda: train(layers(256), same(64, 256), 1, before=buffers),  # 90 ms
    "large": lambda: train(convolutions(64), same(32, 3, 64, 64, wanted=(32, 10)), 1),  # 300 ms
}

if __name__ == "__main__":
    torch.manual_seed(0)
    PROGRAMS[sys.argv[1]]()
