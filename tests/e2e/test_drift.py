"""A training that slows down, run to its end: the report says so, then and later."""

from __future__ import annotations

from pathlib import Path

import pytest

from tdiag.evidence.from_run import load_run
from tdiag.evidence.sampled import LateStacks
from tests.launch.harness import latest, script, tdiag

TRAINING = """
import sys, time, torch
from torch.utils.data import DataLoader, TensorDataset
model = torch.nn.Linear(32, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
data = TensorDataset(torch.randn(4096, 32), torch.randn(4096, 1))
history, until = [], time.perf_counter() + float(sys.argv[1])
while time.perf_counter() < until:
    for x, y in DataLoader(data, batch_size=16):
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        # Steeply: whatever the machine's speed, a step three times as late takes thrice as long.
        history += [loss.item()] * (1 + len(history) // 2000)
        mean = sum(loss * loss + loss**3 - loss**5 for loss in history) / len(history)
print("trained")
"""


@pytest.mark.training
def test_a_run_to_its_end_reports_the_phase_that_grew_and_samples_its_slow_steps(
    tmp_path: Path,
) -> None:
    name = script(tmp_path, TRAINING)
    done = tdiag("run", "--time-budget", "4", name, "25", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "trained\n")
    for text in (done.stderr, tdiag("report", cwd=tmp_path).stdout):
        said = " ".join(text.split())
        assert "TD714" in said and "longer than the previous one" in said, text
    assert list(latest(tmp_path).glob("late-stacks-*.speedscope.json"))
    found = load_run(latest(tmp_path)).get(LateStacks)
    assert found is not None
    line = 1 + next(n for n, x in enumerate(TRAINING.splitlines()) if "mean =" in x)
    assert line in [x.at.line for x in found.stacks.training[:3]]
