"""The same batches from a worker."""

import zlib
from collections.abc import Iterator

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

torch.manual_seed(0)
torch.set_num_threads(1)
draw = np.random.default_rng(0)
PACKED = [zlib.compress(draw.integers(0, 16, 65536, np.uint8).tobytes()) for _ in range(64)]


def batch(number: int) -> tuple[torch.Tensor, torch.Tensor]:
    rows = []
    for index in range(32):
        pixels = zlib.decompress(PACKED[(number + index) % len(PACKED)])
        rows.append(np.frombuffer(pixels, np.uint8).reshape(256, 256).mean(0, dtype=np.float32))
    return torch.from_numpy(np.stack(rows)), torch.arange(32) % 10


class Batches(IterableDataset):
    def __iter__(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        return (batch(number) for number in range(100_000))


model = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for x, y in DataLoader(Batches(), batch_size=None, num_workers=1):
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()
