"""A shard of a thousand rows is loaded for each one of them, in float64."""

import tempfile
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

torch.manual_seed(0)
SHARDS, ROWS, WIDTH = 8, 1000, 256


class Rows(Dataset):
    def __init__(self, folder: Path) -> None:
        draw = np.random.default_rng(0)
        self.paths = [folder / f"{number}.npy" for number in range(SHARDS)]
        for path in self.paths:
            np.save(path, draw.random((ROWS, WIDTH)))

    def __len__(self) -> int:
        return SHARDS * ROWS

    def __getitem__(self, index: int) -> tuple[np.ndarray, int]:
        shard = np.load(self.paths[index // ROWS])
        return shard[index % ROWS], index % 10


with tempfile.TemporaryDirectory() as folder:
    model = nn.Sequential(nn.Linear(WIDTH, 256), nn.ReLU(), nn.Linear(256, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(100):
        for x, y in DataLoader(Rows(Path(folder)), batch_size=16, shuffle=True):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x.float()), y).backward()
            optimizer.step()
