"""Turn-taking of two programs that share a CUDA device."""

import statistics
from pathlib import Path

import pytest
import torch

from tdiag.duel.group import Pace, take_turns
from tests.duel.scripts import program

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]
# Launching is a small part of each step: what it takes runs on the device, after the host.
TRAIN = """
    import os, torch
    model = torch.nn.Linear(4096, 4096, device="cuda")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    x = torch.randn(4096, 4096, device="cuda")
    while True:
        y = x
        for _ in range(int(os.environ["TIMES"])):
            y = model(y)
        y.mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    """


def test_a_turn_holds_the_device_time_of_its_steps(tmp_path: Path) -> None:
    sides = [program(tmp_path, "a", TRAIN, TIMES="4"), program(tmp_path, "b", TRAIN, TIMES="8")]
    a, b = take_turns(sides, tmp_path / "group", Pace(turns=10))
    # One number a turn: from one synchronisation to the next, its steps' mean.
    assert a.typical_ns == a.mean_ns
    ratios = [y / x for x, y in zip(a.typical_ns, b.typical_ns, strict=True)]
    assert 1.6 < statistics.median(ratios) < 2.4
