"""What is processed again in whole runs: by the training thread, and by a loader's worker."""

from __future__ import annotations

from pathlib import Path

import pytest

from tdiag.evidence.feeding import Loaders
from tdiag.evidence.torch_ops import SameInput, SameInputs

from .harness import watch_code

SCRIPT = """
import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset
torch.set_num_threads(1)
def smoothed(wave):
    return np.convolve(wave, np.hanning(33), mode="same").astype(np.float32)
class Windows(Dataset):
    def __init__(self):
        self.waves = np.random.default_rng(0).standard_normal((4, 20_000))
    def __len__(self):
        return 100_000
    def __getitem__(self, index):
        clean = smoothed(self.waves[index % 4])  # HERE
        start = np.random.randint(9000)
        return torch.from_numpy(clean[start : start + 64])
if __name__ == "__main__":
    net = nn.Linear(64, 64)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    for x in DataLoader(Windows(), batch_size=6, num_workers={workers}):
        loss = (net(x) - x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""
HERE = next(n for n, line in enumerate(SCRIPT.splitlines(), 1) if "# HERE" in line)


@pytest.mark.parametrize("workers", [0, 1])
def test_a_recording_that_is_smoothed_for_each_window(workers: int, tmp_path: Path) -> None:
    run = watch_code(
        tmp_path, SCRIPT.format(workers=workers), windows=["baseline", "again"], profiling=True,
        short=True, few=True,
    )  # fmt: skip
    assert run.returncode == 0 and run.of("failure") == []
    evidence = run.evidence()
    same, loaders = evidence.get(SameInputs), evidence.get(Loaders)
    loader = loaders.train() if loaders else None
    assert same is not None and loader is not None
    lines: tuple[SameInput, ...] = loader.again if workers else same.lines
    (line,) = (x for x in lines if x.name == "smoothed")
    assert (line.at.line, line.phase, line.inputs, line.calls) == (HERE, "data_wait", 4, 6)
    assert line.again >= 3 and line.again_ns >= line.ns / 3
    assert line.size == 4 * 20_000
    if workers:
        assert not any(x.name == "smoothed" for x in same.lines)


TWICE = """
import torch
from torch import nn
torch.set_num_threads(1)
net = nn.Sequential(nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 256))
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
while True:
    x = torch.randn(512, 256)
    with torch.no_grad():
        hard = net(x)
        sure = net(x)  # HERE
    loss = (net(x) * hard * sure).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


def test_a_model_that_is_called_twice_on_a_batch(tmp_path: Path) -> None:
    """The probe's own wrapper of a model holds more than the model is given."""
    run = watch_code(
        tmp_path, TWICE, windows=["baseline", "again"], profiling=True, short=True, few=True
    )
    assert run.of("failure") == []
    same = run.evidence().get(SameInputs)
    assert same is not None
    (line,) = same.lines
    here = next(n for n, text in enumerate(TWICE.splitlines(), 1) if "# HERE" in text)
    assert (line.at.line, line.calls, line.again) == (here, 1, 1)
