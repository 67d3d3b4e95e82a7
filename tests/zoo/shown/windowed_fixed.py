"""A generator cuts windows out of recordings that were filtered once."""

from collections.abc import Iterator

import numpy as np
import torch
from torch import nn

ROWS, LENGTH, WINDOW = 24, 60_000, 256


def smoothed(recording: np.ndarray) -> np.ndarray:
    kernel = np.hanning(33) / np.hanning(33).sum()
    level = recording - np.convolve(recording, kernel, mode="same")
    return (level / (np.abs(level).mean() + 1e-6)).astype(np.float32)


def windows(recordings: np.ndarray) -> Iterator[torch.Tensor]:
    draw = np.random.default_rng(0)
    while True:
        rows = []
        for number in draw.integers(0, ROWS, 12):
            clean = recordings[number]
            start = draw.integers(0, LENGTH - WINDOW)
            rows.append(clean[start : start + WINDOW])
        yield torch.from_numpy(np.stack(rows))


torch.manual_seed(0)
recordings = np.random.default_rng(1).standard_normal((ROWS, LENGTH)).cumsum(1)
recordings = np.stack([smoothed(recording) for recording in recordings])
model = nn.Sequential(nn.Linear(WINDOW, 2048), nn.ReLU(), nn.Linear(2048, WINDOW))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for x in windows(recordings):
    loss = (model(x) - x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
