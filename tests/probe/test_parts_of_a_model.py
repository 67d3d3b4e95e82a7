"""A part of a model that is called by itself later is an evaluation, too."""

from __future__ import annotations

from pathlib import Path

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
