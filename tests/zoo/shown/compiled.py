"""A compiled model whose batches have another length each time, evaluated in training mode."""

import torch
from torch import nn

torch.manual_seed(0)
net = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Dropout(0.1), nn.Linear(256, 10))
model = torch.compile(net, backend="eager", dynamic=False)
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
held_out, answers = torch.randn(512, 64), torch.randint(10, (512,))


def accuracy() -> float:
    with torch.no_grad():
        return (net(held_out).argmax(1) == answers).float().mean().item()


for step in range(100_000):
    size = 32 + step % 40
    x, y = torch.randn(size, 64), torch.randint(10, (size,))
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()
    if step % 5 == 0:
        accuracy()
