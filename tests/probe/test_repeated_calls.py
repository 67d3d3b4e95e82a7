"""Calls with the same weights: how many need nothing of each other, and the line that repeats
them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tdiag.evidence.torch_ops import OpLine

from .counted import at_line, count

SCRIPT = """
import torch
from torch import nn
class Cell(nn.Module):
    def __init__(self):
        super().__init__()
        self.into = nn.Linear(16, 16)
    def forward(self, x):
        return self.into(x)
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell = Cell()
        self.others = nn.ModuleList(Cell() for _ in range(8))
    def follow(self, state, times):
        for _ in range(times):
            state = self.cell(state)
        return state
    def forward(self, batch):
        {loop}
        return self.follow(batch, 1) + sum(made)
net = Net()
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
for step in range(100_000):
    loss = net(torch.randn(8, 16)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
CELL, FOLLOW, LOOP = 9, 17, 20


def counted(folder: Path, loop: str) -> OpLine:
    (line,) = at_line(folder, SCRIPT.format(loop=loop), CELL)
    return line


@pytest.mark.parametrize(
    ("loop", "series", "line"),
    [
        # The call at the end of forward begins a series, too.
        ("made = [self.cell(x) for x in batch]", 8 + 1, LOOP),
        ("made = [self.follow(x, 5) for x in batch]", 8 + 1, LOOP),
        ("made = [self.follow(torch.zeros(16), 5) for _ in batch]", 8 + 1, LOOP),
        ("made = [self.follow(batch, 20)]", 2, FOLLOW),
        ("made = [self.follow(batch + self.follow(batch, 9), 9)]", 2, FOLLOW),
        # The next sample may come from the value that was read.
        ("made = [self.cell(torch.full((16,), 0.1 * i)).sum().item() for i in range(8)]", 0, LOOP),
        ("made = [self.cell(batch[i]) for i in range(8) if batch[i].sum().item() < 99]", 9, LOOP),
    ],
)
def test_series(tmp_path: Path, loop: str, series: float, line: int) -> None:
    found = counted(tmp_path, loop)
    assert found.looped_at is not None
    assert (found.series, found.looped_at.line) == (series, line)


@pytest.mark.parametrize("turn", ["first(x) + then(h)", "then(h) + first(x)"])
def test_a_line_of_a_recurrence_is_one_series(tmp_path: Path, turn: str) -> None:
    """Though its inputs could be computed at once."""
    loop = f"""made, h, (first, then) = [batch], batch[0], self.others[:2]
        for x in batch: h = torch.tanh({turn})
        made.append(h)"""
    (found,) = at_line(tmp_path, SCRIPT.format(loop=loop), CELL)
    assert found.series == 1


def test_layers_on_one_input_are_called_by_the_line_that_goes_through_them(tmp_path: Path) -> None:
    found = counted(tmp_path, "made = [other(batch) for other in self.others]")
    assert found.shared_at is not None
    assert (found.shared, found.shared_at.line) == (9, LOOP)  # one at the end


def test_a_weight_that_is_used_once_has_no_loop(tmp_path: Path) -> None:
    found = counted(tmp_path, "made = [batch]")
    assert (found.series, found.looped_at, found.shared_at) == (1, None, None)


KEEPS = """
import weakref
import torch
alive = weakref.WeakSet()
class Local:
    pass
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(8, 8)
    def forward(self, x):
        note = Local()
        alive.add(note)
        for _ in range(4):
            x = self.layer(x)
        return x
net, most = Net(), 0
def look(gradient):
    global most
    most = max(most, len(alive))
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
for step in range(200):
    loss = net(torch.randn(2, 8)).sum()
    loss.register_hook(look)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
print(most)
"""


def test_what_a_function_held_is_gone_before_backward(tmp_path: Path) -> None:
    run = count(tmp_path, KEEPS)
    assert run.of("failure") == [] and run.of("ops")
    assert run.out == "0\n"


ACTING = """
import torch
class Policy(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 2)
    def forward(self, x):
        return self.layer(x)
policy = Policy()
optimizer = torch.optim.SGD(policy.parameters(), lr=0.01)
for step in range(100_000):
    states = torch.randn(20, 4)
    with torch.no_grad():
        for state in states:
            policy(state[None]).argmax().item()
    loss = policy(states).sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


def test_an_agent_gets_one_state_at_a_time_though_it_trains_on_a_batch(tmp_path: Path) -> None:
    (layer,) = at_line(tmp_path, ACTING, 8)
    assert (layer.turns, layer.repeated, layer.one_row) == (21, 1, True)


ROLLED_OUT = """
import torch
class Rates(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(8, 8)
    def forward(self, state):
        return self.layer(state)
rates = Rates()
optimizer = torch.optim.SGD(rates.parameters(), lr=0.01)
def path(state):
    for _ in range(20):
        state = state + 0.1 * rates(state)
    return state
for step in range(100_000):
    with torch.no_grad():
        path(torch.randn(4, 8))
    loss = path(torch.randn(4, 8)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


def test_an_evaluation_before_the_step_is_no_series_of_the_training(tmp_path: Path) -> None:
    (layer,) = at_line(tmp_path, ROLLED_OUT, 8)
    assert (layer.repeated, layer.series) == (20, 1)
