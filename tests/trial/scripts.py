"""Small trainings to change, written as users write theirs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.probe.harness import Watched, watch_code

TRAIN = """
import gc, torch
from torch.utils.data import DataLoader, Dataset

class Data(Dataset):
    asked = 0
    def __len__(self):
        return 16
    def __getitem__(self, index):
        Data.asked += 1
        return torch.full((4,), float(index)), torch.zeros(2)

def validate(model):
    model.eval()
    validate.calls += 1
    validate.graph = model(torch.ones(1, 4)).requires_grad
    model.train()
    return validate.calls
validate.calls = 0

def loss_of(y, t):
    loss_of.calls += 1
    return (y - t).square().mean()
loss_of.calls = 0

def main():
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 2))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    loader = DataLoader(Data(), batch_size=4)
    losses, evaluations = [], []
    for epoch in range(4):
        for x, t in loader:
            loss = LOSS
            optimizer.zero_grad(set_to_none=False)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        evaluations.append(validate(model))
    return model, optimizer, loader, losses, evaluations
"""
END = """
model, optimizer, loader, losses, evaluations = main()
import sys
sys.stdout.write(f"RESULT {SHOW}\\n")
"""


def run(tmp_path: Path, changes: list[tuple[str, str]], show: str, **more: str) -> tuple[str, Any]:
    """What the changed script shows in the end, and what the changes said: (change, state, what).

    ``code``: before ``main()`` is called; ``loss``: how the loss is computed."""
    code = TRAIN.replace("LOSS", more.get("loss", "loss_of(model(x), t)"))
    code += more.get("code", "") + END.replace("SHOW", show)
    tmp_path.mkdir(exist_ok=True)
    watched = watch_code(tmp_path, code, windows=[], trial=changes)
    assert watched.returncode == 0, watched.err
    shown = next(line for line in watched.out.splitlines() if line.startswith("RESULT"))
    assert not watched.of("failure"), watched.of("failure")
    return shown.removeprefix("RESULT "), said(watched)


def said(watched: Watched) -> list[tuple[str, str, str]]:
    return [
        (r["change"], r["state"], r.get("what", ""))
        for r in watched.of("trial")
        if r["state"] not in ("losses", "answered")
    ]
