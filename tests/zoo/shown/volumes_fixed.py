"""The volumes as the bytes that they are, two batches ahead."""

import time

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

torch.manual_seed(0)
SIDE, BATCH = 96, 4


class Scans(Dataset):
    def __len__(self) -> int:
        return 4096

    def __getitem__(self, index: int) -> tuple[np.ndarray, int]:
        time.sleep(0.1)  # stands for reading it
        scan = np.random.default_rng(index).integers(0, 256, (SIDE, SIDE, SIDE), np.uint8)
        return scan, index % 10


model = nn.Sequential(nn.Flatten(), nn.Linear(SIDE**3, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _ in range(100):
    loader = DataLoader(Scans(), batch_size=BATCH, num_workers=2, prefetch_factor=2)
    for x, y in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x.float()), y).backward()
        optimizer.step()
