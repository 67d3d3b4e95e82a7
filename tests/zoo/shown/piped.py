"""Each batch is read from a pipe that another thread fills slowly: the loop waits for a file."""

import os
import threading
import time

import torch
from torch import nn

torch.manual_seed(0)
SIZE = 16 * 256 * 4  # bytes
reading, writing = os.pipe()


def fill() -> None:
    rows = torch.randn(16, 256).numpy().tobytes()
    while True:
        time.sleep(0.03)
        os.write(writing, rows)


threading.Thread(target=fill, daemon=True).start()
model = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 256))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _ in range(100_000):
    x = torch.frombuffer(bytearray(os.read(reading, SIZE)), dtype=torch.float32).view(16, 256)
    loss = (model(x) - x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
