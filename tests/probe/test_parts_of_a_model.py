"""An evaluation that calls parts of a model, and not the model."""

from __future__ import annotations

from pathlib import Path

import pytest

from tdiag.evidence.steps import Phases

from .harness import watch_code

SCRIPT = """
import torch
from torch import nn
class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(64, 64)
    def forward(self, x):
        return self.body(x).relu()
class Contrastive(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = Encoder()
    def forward(self, x):
        return (self.encoder(x) - self.encoder(-x)).square().mean()
@torch.no_grad()
def probe(encoder):
    encoder.eval()
    for _ in range(20):
        encoder(torch.ones(256, 64))
    encoder.train()
model = Contrastive()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(100_000):
    optimizer.zero_grad()
    model(torch.randn(64, 64)).backward()
    optimizer.step()
    if step > 30 and step % 5 == 0:
        probe(model.encoder)
"""


def test_an_encoder_that_is_probed_after_the_warm_up_is_evaluated(tmp_path: Path) -> None:
    run = watch_code(tmp_path, SCRIPT, windows=["baseline"], profiling=True, steps=60)
    assert run.returncode == 0 and run.of("failure") == []
    found = run.evidence().get(Phases)
    assert found is not None
    assert found.eval_batches_per_step > 1
    assert found.wall_ns["evaluation"] > found.wall_ns["prepare"]


RANKS = """
import torch
from torch import nn
class Recommends(nn.Module):
    def __init__(self):
        super().__init__()
        self.items, self.body = nn.Embedding(100, 32), nn.GRU(32, 32, batch_first=True)
    def encode(self, ids):
        return self.body(self.items(ids))[0]
    def forward(self, ids):
        return (self.encode(ids)[:, :-1] * self.items(ids[:, 1:])).sum(-1)
    def predict(self, ids):
        return self.encode(ids)[:, -1] @ self.items.weight.T
@torch.no_grad()
def evaluate(model):
    model.eval()
    best = [model.predict(torch.randint(0, 100, (1, 20))).argmax() for _ in range(100)]
    model.train()
model = Recommends()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(100_000):
    optimizer.zero_grad()
    model(torch.randint(0, 100, (16, 20))).sigmoid().log().mean().neg().backward()
    optimizer.step()
    if step > 30 and step % EVERY == 0:
        evaluate(model)
"""


@pytest.mark.parametrize(("every", "evaluated"), [(3, True), (1, False)])
def test_a_model_in_evaluation_mode_may_be_called_by_its_parts(
    every: int, evaluated: bool, tmp_path: Path
) -> None:
    """After the warm-up, in which calls of parts are still found. What most steps do belongs to the
    training."""
    script = RANKS.replace("EVERY", str(every))
    run = watch_code(tmp_path, script, windows=["baseline"], profiling=True, steps=60)
    assert run.returncode == 0 and run.of("failure") == []
    found = run.evidence().get(Phases)
    assert found is not None
    assert found.eval_batches_per_step == 0
    of_steps = found.wall_ns.get("evaluation", 0.0) / sum(found.wall_ns.values())
    assert of_steps > 0.25 if evaluated else of_steps == 0
