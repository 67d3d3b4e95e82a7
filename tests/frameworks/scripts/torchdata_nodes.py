"""Batches from torchdata's nodes: a thread makes them ahead, and anew for each epoch."""

import torch
from torch import nn
from torch.utils.data import RandomSampler
from torchdata import nodes


def spectrum(number: int) -> tuple[torch.Tensor, int]:
    x = torch.linspace(0, 1, 2000)
    for k in range(20):
        x = torch.sin(x * (k + number % 7 + 1))  # HERE
    return x[:64], number % 5


def collate(rows: list[tuple[torch.Tensor, int]]) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.stack([x for x, _ in rows]), torch.tensor([y for _, y in rows])


made = nodes.Mapper(nodes.SamplerWrapper(RandomSampler(range(2000))), spectrum)
loader = nodes.Loader(nodes.Prefetcher(nodes.Mapper(nodes.Batcher(made, 32), collate), 2))
model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 5))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
while True:
    for x, y in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
