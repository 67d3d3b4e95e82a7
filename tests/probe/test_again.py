"""What the probe takes for the same computation, repeated in one step."""

from __future__ import annotations

from pathlib import Path

import pytest

from .counted import check_share

SCRIPT = """
import torch
from torch import nn
GRAPH = torch.eye(64).to_sparse()
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.key = nn.Linear(64, 64), nn.Linear(64, 64)
    def forward(self, x):
        h = self.body(x)
        y = {made}
        return h + y.float()[:1]
net = Net()
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
for step in range(100_000):
    x = torch.randn(8, 64)
    loss = net(x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


def check(folder: Path, made: str, least: float = 0.0, most: float = 1.0) -> None:
    """The share of repeated work in the time of the calls at the line of ``made``."""
    check_share(folder, SCRIPT.format(made=made), 11, lambda x: x.again_ns, least, most)


@pytest.mark.parametrize(
    "made",
    [
        "sum(self.key(x) for _ in range(20))",
        "sum(torch.sparse.mm(GRAPH, x.T).T.sin().sort().values for _ in range(20))",
        "sum(torch.sparse.mm(GRAPH.to_sparse_csr(), x.T).T.sin() for _ in range(20))",
        "sum(self.key(x).sin().sort().values for _ in range(20))",
        "sum(nn.functional.relu(self.key(x), inplace=True).sin().sort().values for _ in range(20))",
        "sum(self.key(x.contiguous()).sin().sort().values for _ in range(20))",
        "sum(self.key(x).mul_(2).sin().sort().values for _ in range(20))",
        "sum((torch.arange(64) * x).sort().values.sort().values for _ in range(20))",
        "sum(x @ torch.linalg.matrix_power(self.key.weight, n) for n in range(1, 30))",
        "sum(torch.matrix_power(self.key.weight, n) for n in range(1, 30))[:8]",
    ],
)
def test_what_is_repeated(tmp_path: Path, made: str) -> None:
    check(tmp_path, made, least=0.5)


@pytest.mark.parametrize(
    "made",
    [
        "sum(self.key(x + n) for n in range(20))",
        "sum(nn.functional.dropout(x).sort().values for _ in range(20))",
        "(lambda z: sum(z.add_(1.0).sort().values for _ in range(20)))(x.clone())",
        "sum(self.key(x[n : n + 1]) for n in range(8))",
        "(lambda g: sum(torch.sparse.mm(g.mul_(2), x.T).T.sin() for _ in range(9)))(GRAPH.clone())",
        "(lambda g, v: sum((v.mul_(2), torch.sparse.mm(g, x.T).T)[1] for _ in range(9)))"
        "(GRAPH, GRAPH._values())",
        "self.key(x) + self.body(h)",
        "torch.func.vmap(lambda row: row.sin().sort().values)(x)",
        "torch.inference_mode()(lambda: x.sin().sort().values.cos())()",
        "sum(torch.matrix_power(self.key.weight, n) for n in (9, 17, 33, 65))[:8]",
        "sum(torch.matrix_power(self.key.weight * n, n) for n in range(1, 20))[:8]",
    ],
)
def test_what_is_not(tmp_path: Path, made: str) -> None:
    check(tmp_path, made, most=0.2)


PARAMETRIZED = SCRIPT.replace(
    "self.body, self.key = nn.Linear(64, 64), nn.Linear(64, 64)",
    "self.body = nn.Linear(64, 64)\n"
    "        self.key = nn.utils.parametrizations.orthogonal(nn.Linear(64, 64, bias=False))",
)


@pytest.mark.parametrize(
    ("made", "found"),
    [("sum(self.key(x + n) for n in range(20))", True), ("self.key(x) + self.body(h)", False)],
)
def test_a_parametrized_weight_is_computed_at_each_use(
    made: str, found: bool, tmp_path: Path
) -> None:
    code = PARAMETRIZED.format(made=made)
    ends = (0.5, 1.0) if found else (0.0, 0.5)
    check_share(tmp_path, code, 12, lambda x: min(x.again_ns, x.parametrized_ns), *ends)
