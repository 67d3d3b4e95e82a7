"""The table as tensors, made once."""

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
        table = pd.DataFrame(draw.random((20_000, 20)), columns=COLUMNS)
        table["label"] = draw.integers(0, 2, 20_000)
        self.x = torch.from_numpy(table[COLUMNS].to_numpy(np.float32))
        self.y = table["label"].to_list()

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return self.x[index], self.y[index]


model = nn.Sequential(nn.Linear(20, 256), nn.ReLU(), nn.Linear(256, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _ in range(100):
    for x, y in DataLoader(Clicks(), batch_size=32, shuffle=True):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
