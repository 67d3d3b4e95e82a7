"""Slices taken one by one are found in a real run, at the line that takes them."""

from __future__ import annotations

from pathlib import Path

from tdiag.diagnose import diagnose
from tdiag.model.diagnosis import Finding

from .harness import watch_code

SCRIPT = """
import torch
from torch import nn
class Cell(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell = nn.Linear(64, 64)
    def forward(self, x):
        total = 0
        STEPS
        return total
net = Cell()
enter = nn.Linear(64, 64)
optimizer = torch.optim.SGD([*net.parameters(), *enter.parameters()], lr=0.01)
for step in range(100_000):
    loss = net(enter(torch.randn(64, 60, 64))).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
SINGLY = """for t in range(60):
            total = total + torch.tanh(self.cell(x[:, t]))"""
AT_ONCE = """for part in x.unbind(1):
            total = total + torch.tanh(self.cell(part))"""


def found_in(tmp_path: Path, steps: str) -> Finding | None:
    windows = ["baseline", "trace", "ops"]
    run = watch_code(tmp_path, SCRIPT.replace("STEPS", steps), windows=windows, profiling=True,
                     steps=120)  # fmt: skip
    assert run.returncode == 0 and run.of("failure") == []
    diagnosis = diagnose(run.evidence())
    assert "TD750" not in [rule.code for rule in diagnosis.abstained]
    return next((finding for finding in diagnosis.findings if finding.code == "TD750"), None)


def test_slices_of_a_recurrent_cell_are_named_where_they_are_taken(tmp_path: Path) -> None:
    found = found_in(tmp_path, SINGLY)
    assert found is not None and found.location is not None
    assert (found.location.line, found.location.function) == (11, "forward")
    assert "64 × 60 × 64 for each of 60 slices" in found.summary
    assert found.speedup is not None and found.speedup.low > 1


def test_unbind_is_no_finding(tmp_path: Path) -> None:
    assert found_in(tmp_path, AT_ONCE) is None
