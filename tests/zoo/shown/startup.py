"""A short training that reads its index anew at each start."""

import time

import torch
from torch import nn

torch.manual_seed(0)
time.sleep(15)  # stands for the scan of a large folder
model = nn.Linear(64, 10)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _ in range(300):
    x, y = torch.randn(32, 64), torch.randint(10, (32,))
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()
