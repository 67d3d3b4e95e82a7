"""Gradients of many small tensors, each clipped on its own."""

import torch
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)
model = nn.Sequential(*(m for _ in range(40) for m in (nn.Linear(32, 32), nn.Tanh())))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _ in range(100_000):
    x = torch.randn(64, 32)
    optimizer.zero_grad()
    model(x).square().mean().backward()
    for parameter in model.parameters():
        nn.utils.clip_grad_norm_(parameter, 1.0)
    optimizer.step()
