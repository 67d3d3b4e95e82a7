"""Whole checks of small scripts, with fewer and shorter turns than `tdiag check` takes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tdiag.duel.estimate import Looks
from tdiag.duel.group import Pace
from tdiag.duel.side import ProgramFailed
from tdiag.errors import UsageError
from tdiag.gate.against import CheckOptions, check_against
from tdiag.launch.target import Target

from .building import git, repository

LOSS = "def loss_of(y, t):\n    return (y - t).square().mean()\n"
SLOW = """
def loss_of(y, t):
    total = 0.0
    for value in y.flatten():
        total += value.item()
    return (y - t).square().mean() + 0 * total
"""
TRAIN = """
import torch
from torch.utils.data import DataLoader, TensorDataset
from loss import loss_of
torch.manual_seed(0)
torch.set_num_threads(1)
model = torch.nn.Linear(64, 64)
data = TensorDataset(torch.randn(512, 64), torch.randn(512, 64))
for epoch in range(100000):
    for x, t in DataLoader(data, batch_size=4):
        loss = loss_of(model(x), t)
        model.zero_grad()
        loss.backward()
        with torch.no_grad():  # by hand: an optimizer imports what takes longer than torch itself
            for weight in model.parameters():
                weight -= 0.1 * weight.grad
"""
SCRIPT = Target("script", "train.py")


@pytest.fixture
def repo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = repository(tmp_path / "repo", train_py=TRAIN, loss_py=LOSS)
    monkeypatch.chdir(folder)
    return folder


def options(tmp_path: Path, name: str) -> CheckOptions:
    """Wide open to noise: what is tested is the way, not the machine."""
    folder = tmp_path / name
    folder.mkdir()
    return CheckOptions(folder=folder, threshold=20.0, looks=Looks((2,)), pace=Pace(turns=3))


@pytest.mark.training
def test_a_change_is_found_where_it_was_made(repo: Path, tmp_path: Path) -> None:
    (repo / "loss.py").write_text(SLOW)
    progress: list[str] = []
    outcome = check_against(
        SCRIPT, "HEAD", replace(options(tmp_path, "c"), progress=progress.append)
    )
    assert outcome.verdict == "regressed"
    item = next(c for c in outcome.counters if c.name == ".item()")
    assert (item.before, item.now, item.failing) == (0, 256, True)
    assert "loss.py:5 makes 256 more .item() calls a step (0 → 256)" in outcome.reasons
    line = item.lines[0]
    assert line.place is not None and line.place.file == str(repo / "loss.py") and line.in_diff
    assert outcome.changed_files == ("loss.py",)
    # Not by how much, on a machine with other work: 256 calls are more than none, on any.
    step = outcome.step
    assert step is not None and step.ratio > 1.1 and (step.groups, step.turns) == (2, 6)
    assert outcome.components[0].name == "loss" and outcome.components[0].difference > 0
    assert len(progress) == 3 and git(repo, "worktree", "list").count("\n") == 1


def test_a_script_that_fails_is_not_a_regression(repo: Path, tmp_path: Path) -> None:
    (repo / "loss.py").write_text("def loss_of(y, t):\n    raise ValueError('my own fault')\n")
    with pytest.raises(ProgramFailed) as caught:
        check_against(SCRIPT, "HEAD", options(tmp_path, "c"))
    assert "now" in caught.value.message
    assert "Traceback" in caught.value.output and "my own fault" in caught.value.output


@pytest.mark.training
def test_a_side_must_not_import_the_other(repo: Path, tmp_path: Path) -> None:
    """As it does where the package is installed in editable mode."""
    (repo / "train.py").write_text(f"import sys\nsys.path.insert(0, {str(repo)!r})\n{TRAIN}")
    git(repo, "commit", "-qam", "an installation that always finds the working tree")
    with pytest.raises(UsageError, match=r"imports .*loss\.py, which is not its own") as caught:
        check_against(SCRIPT, "HEAD", options(tmp_path, "c"))
    assert "PYTHONPATH" in caught.value.hint
