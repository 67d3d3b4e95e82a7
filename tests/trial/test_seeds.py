"""Both sides of a trial start from the same seeds; a run without a trial is not seeded."""

from __future__ import annotations

from pathlib import Path

from tests.probe.harness import watch_code


def test_both_sides_have_the_same_seeds_and_report_their_losses(tmp_path: Path) -> None:
    code = """
import torch, random
model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    loss = (model(torch.randn(2, 2)) * random.random()).square().mean()
    loss.backward()
    optimizer.step()
"""
    losses = []
    for side in ("a", "b"):
        (tmp_path / side).mkdir()
        watched = watch_code(tmp_path / side, code, windows=[], trial=[])
        losses += [r["values"] for r in watched.of("trial") if r["state"] == "losses"]
    assert len(losses) == 2 and losses[0] == losses[1] and len(set(losses[0])) == 3


def test_without_a_trial_nothing_is_seeded(tmp_path: Path) -> None:
    code = "import torch, sys\nsys.stdout.write(str(torch.initial_seed()))"
    (tmp_path / "plain").mkdir()
    assert watch_code(tmp_path / "plain", code, windows=[]).out != "0"
    (tmp_path / "trial").mkdir()
    assert watch_code(tmp_path / "trial", code, windows=[], trial=[]).out == "0"
