"""What the probe takes for computed and not used."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tdiag.probe.capture.lines import LineCalls
from tdiag.probe.capture.operands import LONG_NS
from tdiag.probe.capture.thrown_away import ThrownAway

from .counted import at_line, check_share

SCRIPT = """
import torch
from torch import nn
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(64, 64), nn.Linear(64, 3000)
        self.labels = torch.full((4, 64), -100)
        self.labels[:, :8] = 1
    def forward(self, x):
        made = self.head(self.body(x))
        return {used}
net = Net()
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
for step in range(100_000):
    loss = net(torch.randn(4, 64, 64)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
# As in a policy's loss: the index comes last, twice the same.
RATIO = (
    "(lambda policy, rows: (policy.log_prob(torch.ones(256)) - 0.5).exp()[rows].sum()"
    " - policy.entropy(){of_entropy}.mean())"
    "(torch.distributions.Categorical(logits=made.flatten(0, 1)), torch.arange(64))"
)
LOSS = "nn.functional.cross_entropy(made.flatten(0, 1), self.labels.flatten(){more})"


def check(folder: Path, script: str, least: float = 0.0, most: float = 1.0) -> None:
    """The share of what is thrown away in the time of the calls at the line of the head."""
    check_share(folder, script, 11, lambda x: x.thrown_away_ns, least, most)


@pytest.mark.parametrize(
    "used",
    [
        "made[:, -1]",
        "made.relu().transpose(0, 1)[0] if made.shape[0] == made.size(0) else None",
        "made.index_select(1, torch.tensor([3])) + made[:, :9].sum()",
        "made.softmax(-1)[:, -1]",
        "made.logsumexp(-1).sub(1.0).neg()[:, :8]",
        RATIO.format(of_entropy="[rows]"),
        LOSS.format(more=""),
        LOSS.format(more=", label_smoothing=0.1, ignore_index=-100"),
    ],
)
def test_what_is_not_used(tmp_path: Path, used: str) -> None:
    check(tmp_path, SCRIPT.format(used=used), least=0.5)


@pytest.mark.parametrize(
    ("used", "least", "most"),
    [
        ("made.diagonal()", 0.9, 1.0),
        ("(made - 1).clamp_min(0).diag()", 0.9, 1.0),
        ("made.diagonal() - made.logsumexp(1)", 0.0, 0.1),  # as contrastive losses have it
    ],
)
def test_a_product_whose_diagonal_is_read(
    used: str, least: float, most: float, tmp_path: Path
) -> None:
    """Variances, without the covariances."""
    script = SCRIPT.replace("self.head(self.body(x))", "h @ h.T").replace(
        "    def forward(self, x):\n", "    def forward(self, x, h=torch.randn(900, 64)):\n"
    )
    script = script.replace("return {used}", "return {used} + self.head(self.body(x)).mean()")
    check(tmp_path, script.format(used=used), least, most)


def test_layers_that_a_library_calls_at_one_line_are_told_apart(tmp_path: Path) -> None:
    deep = "nn.Sequential(nn.Linear(64, 2000), nn.Linear(2000, 64))"
    script = SCRIPT.replace("nn.Linear(64, 64)", deep)
    script = script.replace("self.head(self.body(x))", "nn.Sequential(self.body, self.head)(x)")
    script = script.format(used="made[:, -1]")
    check(tmp_path, script, least=0.2)


AFTER = SCRIPT.replace("loss = net(", "scores = net(").replace(
    ".square().mean()", "\n    loss = scores[:, -1].square().mean()"
)


def test_where_samples_are_chosen(tmp_path: Path) -> None:
    chosen = SCRIPT.format(used="made").replace(".square()", "[torch.arange(2)].square()")
    positions = SCRIPT.format(used="made[:, torch.arange(2)]")
    # As in a graph, the chosen samples need most of what is computed for all.
    mixed = chosen.replace("self.body(x)", "self.body(x).sum(0).expand(4, 64, 64)").replace(
        "nn.Linear(64, 64)", "nn.Sequential(nn.Linear(64, 6000), nn.Linear(6000, 64))"
    )
    for name, script, expected in (
        ("chosen", chosen, 16), ("positions", positions, None), ("mixed", mixed, None)
    ):  # fmt: skip
        (tmp_path / name).mkdir()
        (line,) = (x for x in at_line(tmp_path / name, script, 11) if x.thrown_away_ns)
        assert (line.samples_at and line.samples_at.line) == expected


@pytest.mark.parametrize(("metric", "least"), [("scores.argmax(-1)", 0.0), ("loss.item()", 0.5)])
def test_what_a_metric_uses_after_the_step_is_used(
    metric: str, least: float, tmp_path: Path
) -> None:
    script = AFTER.format(used="made") + f"    {metric}\n"
    check(tmp_path, script, least, most=1.0 if least else 0.0)


@pytest.mark.parametrize(
    "used",
    [
        "made",
        "made[:, 1:]",
        "made[:, -1] + made.mean(1)",
        "made.softmax(1)[:, -1]",
        "made.softmax(-1)[:, -1] + made.log_softmax(-1).mean()",
        "sum(made[:, i] for i in range(64))",
        "torch.cat(made.chunk(4, 1)[:1])",  # a split counts as taking all
        RATIO.format(of_entropy=""),
        LOSS.replace("flatten(){", "flatten().clamp(0){").format(more=""),
    ],
)
def test_what_is_used(tmp_path: Path, used: str) -> None:
    check(tmp_path, SCRIPT.format(used=used), most=0.1)


GATED = """
import torch
from torch import nn
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.expert = nn.Sequential(nn.Linear(64, 1000), nn.GELU(), nn.Linear(1000, 1000))
        self.gate = torch.zeros(256, 1)
        self.gate[:{open}] = 1.0
    def forward(self, x):
        made = self.expert(x)
        return {used}
net = Net()
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
for step in range(100_000):
    loss = net(torch.randn(256, 64)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


@pytest.mark.parametrize(
    ("gate", "used", "least", "most"),
    [
        (32, "self.gate * made", 0.7, 0.88),  # both layers, and what is between them
        (32, "made * self.gate", 0.7, 0.88),
        (32, "made[:32]", 0.7, 0.88),
        (32, "made[:, :100]", 0.3, 0.9),  # columns: the first layer is needed whole
        (200, "made * self.gate", 0.0, 0.0),
        (32, "made * self.gate + made.mean()", 0.0, 0.0),  # used as well
        (32, "made * (self.gate + 1)", 0.0, 0.0),
    ],
)
def test_rows_that_a_gate_leaves(
    gate: int, used: str, least: float, most: float, tmp_path: Path
) -> None:
    script = GATED.format(open=gate, used=used)
    check(tmp_path, script, least, most)


ITEMS = """
import torch
from torch import nn
class Ranker(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.items = nn.Linear(64, 64), nn.Embedding(30_000, 64)
        self.bias = nn.Parameter(torch.zeros(30_000))
    def forward(self, x, chosen):
        made = self.body(x) @ self.items.weight.t() + self.bias
        return {used}
net = Ranker()
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
for step in range(100_000):
    loss = net(torch.randn(64, 64), torch.randint(0, 30_000, (64, 20))).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


@pytest.mark.parametrize(
    ("used", "least", "most"),
    [
        ("made.gather(1, chosen)", 0.5, 1.0),
        ("made.log_softmax(-1).gather(1, chosen)", 0.0, 0.0),  # which reads all
        ("made[:, :30].gather(1, chosen % 30)", 0.5, 1.0),  # of thirty
        ("torch.where(torch.arange(64)[:, None] < 9, made, 0.0)", 0.5, 1.0),
        ("torch.where(torch.arange(64)[:, None] < 60, made, 0.0)", 0.0, 0.0),
        ("torch.where(made > 9, made, 0.0)", 0.0, 0.0),  # all are compared
    ],
)
def test_scores_of_which_a_few_are_gathered_or_rows_chosen(
    tmp_path: Path, used: str, least: float, most: float
) -> None:
    check_share(tmp_path, ITEMS.format(used=used), 10, lambda x: x.thrown_away_ns, least, most)


HEADS = """
import torch
from torch import nn
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        head = lambda: nn.Sequential(nn.Linear(256, 512), nn.LayerNorm(512), nn.Linear(512, 64))
        self.heads = nn.ModuleList(head() for _ in range(6))
        self.trunk = nn.Linear(64, 256)
    def forward(self, x, kind):
        x = self.trunk(x)
        made = torch.stack([head(x) for head in self.heads], 1)  # HERE
        return {used}
net = Net()
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
for step in range(100_000):
    loss = net(torch.randn(512, 64), torch.randint(0, 6, (512,))).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


@pytest.mark.parametrize(
    ("used", "least", "most"),
    [
        ("made[torch.arange(len(x)), kind]", 0.5, 1.0),
        ("made.gather(1, kind[:, None, None].expand(-1, 1, 64))", 0.5, 1.0),
        ("made.relu()[torch.arange(len(x)), kind]", 0.5, 1.0),
        ("made[:, 0]", 0.0, 0.0),  # of a slice it is not known whose rows it takes
        ("made.mean(1)", 0.0, 0.0),
        ("made[:, torch.arange(6)]", 0.0, 0.0),
    ],
)
def test_heads_of_which_each_sample_takes_one(
    used: str, least: float, most: float, tmp_path: Path
) -> None:
    here = next(n for n, line in enumerate(HEADS.splitlines(), 1) if "# HERE" in line)
    script = HEADS.format(used=used)
    check_share(tmp_path, script, here, lambda x: x.thrown_away_ns, least, most)


def test_a_long_recurrence_is_followed_in_no_time() -> None:
    """Each step joins the state with an input: there are as many ways to the last step as subsets
    of the steps between."""
    watch, line = ThrownAway(), LineCalls()
    state, given, weight = (
        torch.zeros(4, 8),
        torch.zeros(4, 8),
        torch.nn.Parameter(torch.ones(8, 16)),
    )
    for _ in range(300):
        joined = torch.cat([state, given], -1)
        watch.seen("cat", ([state, given], -1), {}, joined, None, line, LONG_NS)
        made = torch.nn.functional.linear(joined, weight)
        watch.seen("linear", (joined, weight), {}, made, None, line, LONG_NS)
        moved = state + made
        watch.seen("__add__", (state, made), {}, moved, None, line, LONG_NS)
        state = moved
    watch.settle()
    assert line.thrown_away == 0
