"""torchdata's StatefulDataLoader: its class has an ``__init__`` and an ``__iter__`` of its own."""

import torch
from torch import nn
from torch.utils.data import Dataset
from torchdata.stateful_dataloader import StatefulDataLoader


class Spectra(Dataset):
    def __len__(self) -> int:
        return 2000

    def __getitem__(self, number: int) -> tuple[torch.Tensor, int]:
        x = torch.linspace(0, 1, 2000)
        for k in range(20):
            x = torch.sin(x * (k + number % 7 + 1))  # HERE
        return x[:64], number % 5


loader = StatefulDataLoader(Spectra(), batch_size=32, shuffle=True)
model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 5))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
while True:
    for x, y in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
