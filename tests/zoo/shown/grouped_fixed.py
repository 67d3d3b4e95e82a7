"""A readout computes the softmax of all graphs of a batch at once."""

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
        share = (score - score.max()).exp()
        sums = torch.zeros(GRAPHS, 1).index_add(0, batch, share)
        pooled = torch.zeros(GRAPHS, WIDTH).index_add(0, batch, share / sums[batch] * atoms)
        return self.head(pooled)


model = Readout()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _ in range(100_000):
    x, batch = torch.randn(ATOMS, 16), torch.arange(ATOMS) % GRAPHS
    loss = (model(x, batch) - 1).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
