"""An agent that calls its model before the step: what comes between is timed on the CPU clock."""

from __future__ import annotations

from pathlib import Path

import pytest

from tdiag.evidence.steps import Phases

from .counted import counted
from .harness import watch_code

SCRIPT = """
import time
import torch
from torch import nn
model = nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _ in range(60):
    with torch.no_grad():
        model(torch.ones(1, 4))
    {draw}
    with torch.no_grad():
        wanted = model(torch.ones(8, 4))
    optimizer.zero_grad()
    (model(torch.ones(8, 4)) - wanted).square().sum().backward()
    optimizer.step()
"""


@pytest.mark.parametrize(
    ("draw", "waits"), [("sum(range(200_000))", False), ("time.sleep(0.005)", True)]
)
def test_drawing_a_batch_works_or_waits(tmp_path: Path, draw: str, waits: bool) -> None:
    script = SCRIPT.format(draw=draw)
    run = watch_code(tmp_path, script, windows=["baseline"], profiling=True, steps=60)
    assert run.returncode == 0 and run.of("failure") == []
    found = run.evidence().get(Phases)
    assert found is not None and found.acts
    assert found.wall_ns["prepare"] > found.wall_ns["forward"]
    assert found.cpu_ns["prepare"] > 0
    assert found.prepare_waits is waits


GAN = """
import time
import torch
from torch import nn
painter, critic = nn.Linear(4, 4), nn.Linear(4, 1)
first = torch.optim.SGD(critic.parameters(), lr=0.01)
second = torch.optim.SGD(painter.parameters(), lr=0.01)
for _ in range(60):
    {draw}
    real = torch.ones(8, 4)
    fake = painter(real)
    (critic(real) - critic(fake.detach())).sum().backward()
    first.step()
    critic(fake).sum().backward()
    second.step()
    first.zero_grad()
    second.zero_grad()
"""


@pytest.mark.parametrize(
    ("draw", "waits"), [("sum(range(200_000))", False), ("time.sleep(0.005)", True)]
)
def test_a_batch_may_be_made_between_two_optimizers_of_a_step(
    tmp_path: Path, draw: str, waits: bool
) -> None:
    """The critic's step ends the step, so that the next batch is made in the middle of it."""
    script = GAN.format(draw=draw)
    run = watch_code(tmp_path, script, windows=["baseline"], profiling=True, steps=60)
    assert run.returncode == 0 and run.of("failure") == []
    found = run.evidence().get(Phases)
    assert found is not None
    assert found.wall_ns["prepare"] > found.wall_ns["forward"]
    assert found.cpu_ns["prepare"] > 0
    assert found.prepare_waits is waits


COUNTED = """
import torch
from torch import nn
model, target = nn.Linear(4, 2), nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
batches = {batches}
for _ in range(100_000):
    {ask}
    with torch.no_grad():
        model(torch.ones(1, 4))
    torch.randn(500).sort()  # between two calls of one module
    with torch.no_grad():
        wanted = model(torch.ones(8, 4))
    torch.randn(500).sort()  # between two modules
    with torch.no_grad():
        wanted = wanted + target(torch.ones(8, 4))
    optimizer.zero_grad()
    (model(torch.ones(8, 4)) - wanted).square().sum().backward()
    optimizer.step()
"""


@pytest.mark.parametrize(
    ("batches", "ask", "phase"),
    [
        ("None", "pass", "prepare"),
        # A teacher's passes, on a batch that a loader made.
        ("iter(torch.utils.data.DataLoader(range(1_000_000)))", "next(batches)", "forward"),
    ],
)
def test_torch_calls_between_an_agents_passes_prepare(
    batches: str, ask: str, phase: str, tmp_path: Path
) -> None:
    script = COUNTED.format(batches=batches, ask=ask)
    between = [n for n, text in enumerate(script.splitlines(), 1) if "# between" in text]
    lines = counted(tmp_path, script).lines
    assert [{x.phase for x in lines if x.at.line == n} for n in between] == [{phase}] * 2
