"""What following the tensors of a counted step tells, on real small scripts."""

from pathlib import Path

import pytest

from tdiag.evidence.memory import MemoryGrowth
from tdiag.evidence.steps import Steps
from tdiag.evidence.store import Evidence
from tdiag.evidence.torch_ops import Ops
from tdiag.evidence.training import Activation, ClipCalls, Gradients, Layers, Recomputations
from tdiag.probe.wire import MOST_GRAPH_NODES

from .harness import watch_code

NET = """
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm2d(8)  # made before the layer it follows
        self.first = nn.Conv2d(3, 8, 3)
        self.second = nn.Conv2d(8, 8, 3)  # its output goes to the norm and elsewhere
        self.norm2 = nn.BatchNorm2d(8)
        self.plain = nn.Conv2d(8, 8, 3, bias=False)
        self.head = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2))
    def forward(self, x):
        first = self.first(x)  # BIASED
        x = torch.relu(self.norm(first))  # GONE
        both = self.second(x)
        wide = self.norm2(self.plain(self.norm2(both) + both))
        x = nn.functional.relu(wide)  # HELD
        x = checkpoint(self.head, x.mean((2, 3)), use_reentrant=False)  # CHECKPOINT
        self.last = wide if self.training else None
        return x

torch.manual_seed(0)
model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
table = torch.arange(2.0)
kept, total = [], 0.0
for step in range(100_000):
    x, y = torch.randn(4, 3, 16, 16), torch.randint(0, 2, (4,))
    output = model(x)
    loss = nn.functional.cross_entropy(output, y)
    model.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=False)  # CLIP
    optimizer.step()
    table.to("meta")  # MOVED
    model.to("cpu")  # MODULE
    kept.append(output * 2)  # KEPT
    total = total + loss  # TOTAL
"""

TIDY = """
import torch
model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU(inplace=True))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
kept, total = [], 0.0
for step in range(100_000):
    loss = model(torch.randn(8, 4)).sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    total += loss.detach()
    kept.append(loss.item())
"""


def line_of(mark: str) -> int:
    return next(n for n, text in enumerate(NET.splitlines(), 1) if f"# {mark}" in text)


@pytest.fixture(scope="module")
def evidence(tmp_path_factory: pytest.TempPathFactory) -> Evidence:
    return counted(tmp_path_factory.mktemp("flow"), NET)


def counted(folder: Path, code: str, steps: int | None = None) -> Evidence:
    windows = ["baseline", "calls", "ops", "sample"]
    run = watch_code(folder, code, windows=windows, profiling=True, steps=steps, short=True)
    assert run.returncode == 0, run.err
    assert run.of("failure") == []
    return run.evidence()


def test_a_bias_before_a_norm_is_told_by_the_tensors_not_by_their_order(evidence: Evidence) -> None:
    layers = evidence.get(Layers)
    assert layers and layers.bias_before_norm is not None
    (biased,) = layers.bias_before_norm
    assert (biased.name, biased.cls, biased.features, biased.calls) == ("first", "Conv2d", 8, 1)
    assert biased.at and biased.at.line == line_of("BIASED")
    assert layers.mode_dependent == ("BatchNorm2d",)
    assert layers.classes["Conv2d"] == 3
    assert layers.dtypes.keys() == {"float32"}
    assert layers.conv_bytes == 4 * (8 * 3 * 9 + 2 * 8 * 8 * 9)
    assert layers.channels_last_bytes == 0


def test_activations_tell_whether_their_input_was_held(evidence: Evidence) -> None:
    layers = evidence.get(Layers)
    assert layers and layers.out_of_place is not None
    by_line: dict[int, Activation] = {a.at.line: a for a in layers.out_of_place if a.at}
    gone, held = by_line[line_of("GONE")], by_line[line_of("HELD")]
    assert (gone.name, gone.bytes, gone.held_bytes) == ("relu", 4 * 4 * 8 * 14 * 14, 0)
    assert held.held_bytes == held.bytes == 4 * 4 * 8 * 10 * 10


def test_clipping_and_checkpointing_are_found_on_the_users_lines(evidence: Evidence) -> None:
    clips, again = evidence.get(ClipCalls), evidence.get(Recomputations)
    gradients = evidence.get(Gradients)
    assert clips and again and gradients
    (clip,) = clips.clips
    assert (clip.name, clip.calls, clip.foreach, clip.tensors) == ("clip_grad_norm_", 1, False, 13)
    assert clip.at and clip.at.line == line_of("CLIP")
    assert clip.elapsed_ns > 0 and clip.total_ns
    assert gradients.clipped is True
    assert max(gradients.norms) <= 1.0001
    assert again.at and again.at.line == line_of("CHECKPOINT")
    assert (again.reentrant, again.calls) == (False, 1)
    assert again.forward_ns


def test_what_is_sent_again_each_step_is_told_from_what_is_new(evidence: Evidence) -> None:
    ops = evidence.get(Ops)
    assert ops
    again = {line.at.line: line.moved_bytes for line in ops.lines if line.moved_again}
    assert again == {line_of("MOVED"): pytest.approx(8, abs=8)}
    (move,) = ops.module_moves
    assert (move.at and move.at.line, move.per_step) == (line_of("MODULE"), 1)


def test_what_outlives_its_step_is_named_by_the_line_that_made_it(evidence: Evidence) -> None:
    growth = evidence.get(MemoryGrowth)
    assert growth
    kept = {line.at.line: line for line in growth.kept if line.at}
    appended = kept[line_of("KEPT")]
    assert (appended.tensors, appended.bytes, appended.graphs) == (1, 4 * 4 * 2, 1)
    assert growth.bytes_per_step >= appended.bytes
    assert growth.since_steps > 5
    (graph,) = growth.graphs
    assert graph.at and graph.at.line == line_of("TOTAL")
    seen = evidence.get(Steps)
    assert seen
    # A loss has more than five; of thousands of steps no more than MOST_GRAPH_NODES are counted.
    assert graph.nodes > min(5, MOST_GRAPH_NODES / 2 / seen.total_steps_seen)


def test_a_tidy_training_keeps_nothing(tmp_path: Path) -> None:
    evidence = counted(tmp_path, TIDY, steps=60)
    growth, layers = evidence.get(MemoryGrowth), evidence.get(Layers)
    clips, again = evidence.get(ClipCalls), evidence.get(Recomputations)
    assert growth and layers and clips and again
    assert (growth.kept, growth.graphs) == ((), ())
    assert (layers.bias_before_norm, layers.out_of_place) == ((), ())
    assert clips.clips == ()
    assert (again.at, again.calls) == (None, 0)


EPISODES = """
import torch
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(100_000):
    total = torch.zeros(())
    for _ in range(1 + step // 2):
        total = total + model(torch.randn(8, 4)).sum()
    optimizer.zero_grad()
    total.backward()
    optimizer.step()
"""


def test_longer_episodes_are_no_graph_of_steps_before(tmp_path: Path) -> None:
    """The total of a step holds ever more nodes, all of them the step's own."""
    growth = counted(tmp_path, EPISODES).get(MemoryGrowth)
    assert growth is not None and growth.graphs == ()


# Written out as minGPT does it, beside pytorch/examples' graph attention, whose scores are sums,
# and a contrastive softmax, whose weights weigh nothing.
ATTENTION = """
import math
import torch
from torch import nn
from torch.nn import functional as F
first, second = nn.Linear(8, 24), nn.Linear(8, 24)
optimizer = torch.optim.SGD([*first.parameters(), *second.parameters()], lr=0.01)
mask = torch.tril(torch.ones(5, 5))
a = torch.randn(2, 4, 1)
for step in range(100_000):
    q, k, v = first(torch.randn(3, 5, 8)).view(3, 5, 3, 2, 4).permute(2, 0, 3, 1, 4)
    scores = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(4))
    scores = scores.masked_fill(mask == 0, float("-inf"))
    weights = F.softmax(scores, dim=-1)
    y = F.dropout(weights, 0.1) @ v
    h = second(torch.randn(5, 8)).view(5, 2, 12)[..., :4].permute(1, 0, 2)
    ends = torch.matmul(h, a) + torch.matmul(h, a).mT
    z = torch.matmul(F.softmax(F.leaky_relu(ends, 0.2), dim=-1), h)
    flat = y.flatten(1)
    contrast = F.softmax(flat @ flat.T, dim=-1).diagonal().log().sum()
    optimizer.zero_grad()
    (y.sum() + z.sum() - contrast).backward()
    optimizer.step()
"""


def test_attention_is_followed_from_product_to_product(tmp_path: Path) -> None:
    ops = counted(tmp_path, ATTENTION).get(Ops)
    assert ops is not None and ops.attention is not None
    (found,) = ops.attention
    line = next(n for n, t in enumerate(ATTENTION.splitlines(), 1) if "F.dropout" in t)
    assert found.at is not None and (found.at.line, found.per_step) == (line, 1.0)
