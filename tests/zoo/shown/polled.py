"""A thread makes batches ahead, and looks ten times a second whether its queue has room."""

import queue
import threading
import time

import torch
from torch import nn

torch.manual_seed(0)
batches: queue.Queue[torch.Tensor] = queue.Queue(maxsize=4)


def make() -> None:
    while True:
        batch = torch.randn(64, 256).cumsum(1) / 16
        while batches.full():
            time.sleep(0.1)
        batches.put(batch)


threading.Thread(target=make, daemon=True).start()
model = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 256))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _ in range(100_000):
    x = batches.get()
    loss = (model(x) - x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
