"""The same with its index kept, and as many steps as a training has."""

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(64, 10)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _ in range(20_000):
    x, y = torch.randn(32, 64), torch.randint(10, (32,))
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()
