"""A readout loops over the graphs of a batch, one softmax after the other."""

import torch
from torch import nn

torch.manual_seed(0)
GRAPHS, ATOMS, WIDTH = 96, 9600, 64


class Readout(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(16, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH))
        self.gate, self.head = nn.Linear(WIDTH, 1), nn.Linear(WIDTH, 1)

    def forward(self, x: torch.Tensor, batch: torch.Tensor) -> torch.Tensor:
        atoms = self.body(x)
        score = self.gate(atoms)
        pooled = []
        for g in range(GRAPHS):
            rows = batch == g
            share = torch.softmax(score[rows], dim=0)
            pooled.append((share * atoms[rows]).sum(dim=0))
        return self.head(torch.stack(pooled))


model = Readout()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _ in range(100_000):
    x, batch = torch.randn(ATOMS, 16), torch.arange(ATOMS) % GRAPHS
    loss = (model(x, batch) - 1).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
