"""Volumes in float64 that hold bytes, with a queue for as many as would fill the machine."""

import os
import time

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

torch.manual_seed(0)
SIDE, BATCH = 96, 4
MEMORY = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
QUEUE = MEMORY // (8 * SIDE**3 * BATCH)  # per worker; they are slower than the training


class Scans(Dataset):
    def __len__(self) -> int:
        return 4096

    def __getitem__(self, index: int) -> tuple[np.ndarray, int]:
        time.sleep(0.1)  # stands for reading it
        scan = np.random.default_rng(index).integers(0, 256, (SIDE, SIDE, SIDE), np.uint8)
        return scan.astype(np.float64), index % 10


model = nn.Sequential(nn.Flatten(), nn.Linear(SIDE**3, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _ in range(100):
    loader = DataLoader(Scans(), batch_size=BATCH, num_workers=2, prefetch_factor=QUEUE)
    for x, y in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x.float()), y).backward()
        optimizer.step()
