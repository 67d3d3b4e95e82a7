"""Rows of a pandas table, looked up one by one."""

import numpy as np
import pandas as pd
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

torch.manual_seed(0)
COLUMNS = [f"feature_{number}" for number in range(20)]


class Clicks(Dataset):
    def __init__(self) -> None:
        draw = np.random.default_rng(0)
        self.table = pd.DataFrame(draw.random((20_000, 20)), columns=COLUMNS)
        self.table["label"] = draw.integers(0, 2, 20_000)

    def __len__(self) -> int:
        return len(self.table)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        row = self.table.iloc[index]
        return torch.tensor(row[COLUMNS].to_numpy(np.float32)), int(row["label"])


model = nn.Sequential(nn.Linear(20, 256), nn.ReLU(), nn.Linear(256, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _ in range(100):
    for x, y in DataLoader(Clicks(), batch_size=32, shuffle=True):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
