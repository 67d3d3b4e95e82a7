"""Rows that brackets pick by a tensor of numbers, with gradients."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch.overrides import TorchFunctionMode

from tdiag.probe.capture.indexed import sized_by_value

from .counted import check_share

SCRIPT = """
import torch
from torch import nn
torch.manual_seed(0)
net = nn.Linear(64, 64)
optimizer = torch.optim.SGD(net.parameters(), lr=1e-4)
numbers = torch.randint(0, 64, (500,))
mask = torch.rand(64) < 0.5
for step in range(100_000):
    batch = torch.randn(64, 64)
    x = net(batch)
    picked = {picked}
    loss = picked.square().mean() + x.mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


@pytest.mark.parametrize("picked", ["x[numbers]", "x[:, numbers]", "x[..., numbers.view(2, 250)]"])
def test_index_select_could_pick_them(picked: str, tmp_path: Path) -> None:
    script = SCRIPT.format(picked=picked)
    check_share(tmp_path, script, 12, lambda x: x.indexed_ns, least=0.9)


@pytest.mark.parametrize(
    "picked",
    [
        "x.index_select(0, numbers)",
        "batch[numbers]",  # without gradients
        "x[numbers, numbers]",  # single elements
        "x[5:][numbers.min()]",  # one row; the largest number may be beyond it
        "x[mask]",
        "x[:32, numbers]",
    ],
)
def test_what_is_something_else(picked: str, tmp_path: Path) -> None:
    script = SCRIPT.format(picked=picked)
    check_share(tmp_path, script, 12, lambda x: x.indexed_ns, most=0.0)


class Names(TorchFunctionMode):
    """What each call selects by value."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str | None] = []

    def __torch_function__(self, func, types, args=(), kwargs=None):
        self.found.append(sized_by_value(func.__name__, args, kwargs or {}))
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(
    ("call", "found"),
    [
        ("x[mask]", "masked_select"),
        ("x[0, mask[0]]", "masked_select"),
        ("x.__setitem__(mask, x[mask])", "masked_select"),
        ("torch.where(mask)", "nonzero"),
        ("torch.argwhere(mask)", "nonzero"),
        ("mask.nonzero()", "nonzero"),
        ("torch.unique_consecutive(x)", "unique"),
        ("torch.where(mask, x, 0)", None),
        ("x.__setitem__(mask, 0)", None),
        ("x.__setitem__(mask, torch.tensor(0.0))", None),
        ("x[torch.tensor([1, 0])]", None),
        ("x[1:]", None),
    ],
)
def test_which_calls_need_values_for_the_size_of_their_result(call: str, found: str | None) -> None:
    x = torch.randn(3, 3)
    with Names() as names:
        eval(call, {"torch": torch, "x": x, "mask": x > 0})
    assert names.found[-1] == found
