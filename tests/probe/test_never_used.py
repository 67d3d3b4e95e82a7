"""What the probe takes for computed and used by nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from tdiag.evidence.torch_ops import Ops

from .counted import count

SCRIPT = """
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
class Double(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2
    @staticmethod
    def backward(ctx, gradient):
        return gradient * 2
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.seen = nn.Linear(64, 2000), []
        self.norm = nn.BatchNorm1d(2000)
    def forward(self, x):
        {before}
        made = self.body(x)
        {after}
        return made
net, teacher = Net(), Net().requires_grad_(False)
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
for step in range(100_000):
    x = torch.randn(32, 64)
    loss = net(x).square().mean()
    {loss}
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    {end}
"""


def never_used(folder: Path, **parts: str) -> tuple[float, list[int]]:
    """The share of the forward's time that was never used, and the lines to change."""
    given = {"before": "", "after": "", "loss": "", "end": "", **parts}
    script = SCRIPT.format(**given)
    run = count(folder, script)
    assert run.returncode == 0 and run.of("failure") == []
    ops = run.evidence().get(Ops)
    assert ops is not None
    unused = sum(x.never_used_ns for x in ops.lines)
    forward = sum(x.elapsed_ns for x in ops.lines if x.phase in ("forward", "loss"))
    return unused / forward, [x.at.line for x in ops.never_used if x.at]


BEFORE, AFTER, LOSS = (
    next(n for n, line in enumerate(SCRIPT.splitlines(), 1) if line.strip() == name)
    for name in ("{before}", "{after}", "{loss}")
)


@pytest.mark.parametrize(
    ("parts", "line"),
    [
        ({"before": "self.spread = torch.stack([self.body(x + k) for k in range(4)]).std()"},
         BEFORE),
        ({"before": "more = self.body(x); more = more.relu_().view(-1)[:9]"}, BEFORE),
        ({"after": "self.note = [self.body(x).softmax(-1), made]"}, AFTER),
        ({"loss": "other = net(x + 1)"}, LOSS),  # not the line of the model that both calls run
        ({"loss": "other = net(x + 1); other = other.add_(net(x)).size()"}, LOSS),
        ({"loss": "with torch.no_grad(): other = (net(x + 1) - net(x)).square().mean()"}, LOSS),
        ({"loss": "other = teacher(x + 1)"}, LOSS),
    ],
)  # fmt: skip
def test_what_nothing_uses(tmp_path: Path, parts: dict[str, str], line: int) -> None:
    share, lines = never_used(tmp_path, **parts)
    assert share > 0.1  # half, but others may use the core meanwhile
    assert lines == [line]


@pytest.mark.parametrize(
    "parts",
    [
        {},
        {"loss": "loss = loss + net(x + 1).mean()"},
        {"loss": "target = net(x + 1).detach().mean(); loss = loss + target * loss"},
        {"loss": "other = net(x + 1)", "end": "print(float(other.mean()))"},
        {"loss": "other = net(x + 1); names = f'{other.mean():.3f}'"},
        {"loss": "kept = globals().setdefault('kept', []); kept.append(net(x + 1))"},
        {"after": "self.last = made"},
        {"loss": "loss = loss + (net(x) - teacher(x)).square().mean()"},
        {"loss": "with torch.no_grad(): target = net(x + 1)\n"
         "    loss = loss + torch.nn.functional.mse_loss(net(x), target)"},
        {"loss": "with torch.no_grad(): other = float(net(x + 1).mean())"},
        {"after": "with torch.no_grad(): self.norm(self.body(x))"},  # its running statistics
        {"after": "made = made + checkpoint(lambda x: self.body(x).relu(), x.requires_grad_(),"
         " use_reentrant=True)"},
        {"after": "made = Double.apply(self.body(x)) + made"},
        {"after": "more = torch.zeros(32, 2000); more[:, :] = self.body(x); made = made + more"},
        {"after": "self.body.weight.data.mul_(1 + 0 * self.body(x).detach().mean())"},
        {"after": "made = made + checkpoint(self.body, x, use_reentrant=False)"},
        {"after": "made = made + checkpoint(self.body, x.requires_grad_(), use_reentrant=True)"},
        {"loss": "torch.autograd.backward([net(x).mean()])"},
        {"loss": "(slope,) = torch.autograd.grad(net(x).mean(), [net.body.weight])"},
        {"loss": "loss = loss + torch.func.functional_call(net, dict(net.named_parameters()),"
         " (x,)).mean()"},
    ],
)  # fmt: skip
def test_what_is_used(tmp_path: Path, parts: dict[str, str]) -> None:
    share, _ = never_used(tmp_path, **parts)
    assert share < 0.02


LBFGS = """
import torch
w = torch.nn.Parameter(torch.randn(64, 64, dtype=torch.cfloat) * 0.1)
k = torch.nn.Parameter(torch.randn(16, 1, 9) * 0.1)
optimizer = torch.optim.LBFGS([w, k], lr=0.1, max_iter=5)
for step in range(100_000):
    x = torch.randn(32, 64)
    def closure():
        optimizer.zero_grad()
        made = torch.fft.ifft(torch.fft.fft(x) @ w).real
        loss = (torch.nn.functional.conv1d(made[:, None], k).mean(1)[:, :56] - x[:, :56])
        loss = loss.square().mean()
        loss.backward()
        return loss
    optimizer.step(closure)
"""


def test_views_whose_node_torch_cannot_make(tmp_path: Path) -> None:
    """Of complex parameters: reading their node raises."""
    run = count(tmp_path, LBFGS)
    assert run.returncode == 0 and run.of("failure") == []
    assert run.evidence().get(Ops) is not None
