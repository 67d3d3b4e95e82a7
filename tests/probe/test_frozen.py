"""What the probe sees of layers that nothing trains: their time, name and disturbances."""

from __future__ import annotations

from pathlib import Path

import pytest

from tdiag.evidence.torch_ops import Ops
from tdiag.evidence.training import FrozenLayers

from .harness import watch_code

SCRIPT = """
import random
import torch
from torch import nn
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(64, 256), {layer}, nn.Linear(256, 32))
        self.head = nn.Linear(32, 4)
    def forward(self, x):
        features = self.encoder({input})
        return self.head({features})
net = Net()
net.encoder.requires_grad_({trained})
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
batch, labels = torch.randn(8, 64), torch.randint(4, (8,))
for step in range(100_000):
    loss = nn.functional.cross_entropy(net(batch), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    {after}
"""


def watched(
    folder: Path,
    layer: str = "nn.ReLU()",
    given: str = "x",
    trained: bool = False,
    features: str = "features",
    after: str = "pass",
) -> tuple[FrozenLayers | None, Ops]:
    script = SCRIPT.format(
        layer=layer, input=given, trained=trained, features=features, after=after
    )
    run = watch_code(folder, script, windows=["baseline", "ops"], profiling=True, steps=60)
    assert run.returncode == 0 and run.of("failure") == []
    evidence = run.evidence()
    ops = evidence.get(Ops)
    assert ops is not None
    return evidence.get(FrozenLayers), ops


def test_the_calls_of_frozen_layers_and_their_results_are_counted(tmp_path: Path) -> None:
    found, ops = watched(tmp_path)
    assert found is not None
    assert found.names == ("Net.encoder",)
    assert found.feature_bytes == 8 * 32 * 4
    assert not (found.random or found.changing or found.modes)
    by_line = {line.at.line: line for line in ops.lines}
    assert by_line[11].frozen_ns == pytest.approx(by_line[11].elapsed_ns)  # three calls, all frozen
    assert not any(line.frozen_ns for line in ops.lines if line.at.line != 11)


def test_layers_that_are_trained_are_not_frozen(tmp_path: Path) -> None:
    found, ops = watched(tmp_path, trained=True)
    assert found is None
    assert not any(line.frozen_ns for line in ops.lines)


@pytest.mark.parametrize(
    "given",
    [
        "x + torch.randn_like(x)",
        "x if torch.rand(()) < 0.5 else -x",
        "x if random.random() < 0.5 else -x",
    ],
)
def test_random_numbers_that_reach_them_are_seen(tmp_path: Path, given: str) -> None:
    found, _ = watched(tmp_path, given=given)
    assert found is not None and found.random


def test_random_numbers_behind_them_are_no_matter(tmp_path: Path) -> None:
    found, _ = watched(tmp_path, features="features + torch.randn(8, 32)")
    assert found is not None and not found.random


@pytest.mark.parametrize(
    "after",
    [
        "[p.mul_(0.99) for p in net.encoder.parameters()]",
        "[p.data.mul_(0.99) for p in net.encoder.parameters()]",
    ],
)
def test_weights_that_the_script_changes_are_not_frozen(tmp_path: Path, after: str) -> None:
    found, _ = watched(tmp_path, after=after)
    assert found is not None and found.changing


@pytest.mark.parametrize(
    ("layer", "mode"), [("nn.Dropout()", "dropout"), ("nn.BatchNorm1d(256)", "batch norm")]
)
def test_layers_that_differ_in_training_are_named(tmp_path: Path, layer: str, mode: str) -> None:
    found, _ = watched(tmp_path, layer=layer)
    assert found is not None and found.modes == (mode,)
