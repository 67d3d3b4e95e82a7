"""Two workers, and a sample in every four thousand whose file takes long to come."""

import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

torch.manual_seed(0)


class Clips(Dataset):
    def __len__(self) -> int:
        return 65536

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        if index % 4096 == 0:
            time.sleep(0.15)  # stands for a large file on a slow disk
        return torch.full((256,), index / 65536), index % 10


model = nn.Sequential(
    nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 10)
)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _ in range(100):
    for x, y in DataLoader(Clips(), batch_size=128, num_workers=2):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
