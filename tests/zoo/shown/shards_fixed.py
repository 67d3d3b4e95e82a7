"""Rows are read where they lie in the shard, and kept in float32."""

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
        paths = [folder / f"{number}.npy" for number in range(SHARDS)]
        for path in paths:
            np.save(path, draw.random((ROWS, WIDTH), np.float32))
        self.shards = [np.load(path, mmap_mode="r") for path in paths]

    def __len__(self) -> int:
        return SHARDS * ROWS

    def __getitem__(self, index: int) -> tuple[np.ndarray, int]:
        shard = self.shards[index // ROWS]
        return np.array(shard[index % ROWS]), index % 10


with tempfile.TemporaryDirectory() as folder:
    model = nn.Sequential(nn.Linear(WIDTH, 256), nn.ReLU(), nn.Linear(256, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(100):
        for x, y in DataLoader(Rows(Path(folder)), batch_size=16, shuffle=True):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x.float()), y).backward()
            optimizer.step()
