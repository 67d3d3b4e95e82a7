"""One optimizer for each tensor, and one that takes over from another."""

from __future__ import annotations

from pathlib import Path

import pytest

from .harness import watch_code

EACH = """
import torch
model = torch.nn.Sequential(*(torch.nn.Linear(4, 4) for _ in range(10)))
optimizers = [torch.optim.SGD([p], lr=0.1) for p in model.parameters()]
for step in range(24):
    model(torch.ones(2, 4)).sum().backward()
    for optimizer in optimizers:
        optimizer.step()
        optimizer.zero_grad()
"""
# Of two, the first steps six times and never again.
REPLACED = """
import torch
first, second = (torch.nn.Linear(4, 4) for _ in range(2))
warm_up, then = (torch.optim.SGD(m.parameters(), lr=0.1) for m in (first, second))
for step in range(36):
    model, optimizer = (first, warm_up) if step < 6 else (second, then)
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
"""


@pytest.mark.parametrize(("code", "steps", "optimizers"), [(EACH, 24, 20), (REPLACED, 36 - 7, 2)])
def test_a_step_is_one_round_of_all_optimizers(
    code: str, steps: int, optimizers: int, tmp_path: Path
) -> None:
    watched = watch_code(tmp_path, code, windows=[])
    assert watched.returncode == 0, watched.err
    assert len(watched.steps()) == pytest.approx(steps, abs=1)
    described = [record["id"] for record in watched.of("optimizer")]
    assert described == list(range(optimizers))
