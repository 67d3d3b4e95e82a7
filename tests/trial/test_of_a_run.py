"""Trials of what a diagnosis proposes: `tdiag run --try`, `tdiag try SCRIPT`, `tdiag try`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.probe.harness import SHORT

from .test_command import tdiag

ANOMALY = """
import os, torch
if os.environ.get("TDIAG_TRIAL") and FAILS:
    1 / 0
model = torch.nn.Sequential(*(torch.nn.Linear(16, 16) for _ in range(4)))
torch.autograd.set_detect_anomaly(True)
for step in range(100000):
    loss = model(torch.ones(4, 16)).square().mean()
    model.zero_grad()
    loss.backward()
    with torch.no_grad():  # by hand: an optimizer imports what takes longer than torch itself
        for weight in model.parameters():
            weight -= 1e-3 * weight.grad
"""


@pytest.mark.training
def test_a_run_measures_what_the_diagnosis_proposes(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(ANOMALY.replace("FAILS", "False"))
    words = ("run", "train.py", "--profiling", "--try", "--try-budget", "1", "--json")
    done = tdiag(tmp_path, *words, PYTHONPATH=str(SHORT))
    assert done.returncode == 0, done.stderr
    shown = json.loads(done.stdout)
    (one,) = shown["trials"]["tried"]
    assert one["groups"] >= 3 and one["speedup"] > 0, one
    again = json.loads(tdiag(tmp_path, "report", "--fresh", "--json").stdout)
    assert again["trials"] == shown["trials"]


@pytest.mark.slow
def test_a_trial_that_fails_costs_nothing_but_itself(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(ANOMALY.replace("FAILS", "True"))
    done = tdiag(tmp_path, "run", "train.py", "--profiling", "--try")
    assert done.returncode == 0
    assert "nothing was tried: the script itself failed" in " ".join(done.stderr.split())
    assert "ZeroDivisionError" in done.stderr and "Step time" in done.stderr
