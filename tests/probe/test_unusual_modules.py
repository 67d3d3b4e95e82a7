"""What has less than other modules and tensors, or more: scripted, traced, lazy, of a subclass."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tdiag.evidence.torch_ops import Ops
from tdiag.evidence.training import Layers, Modules

from .harness import watch_code

SCRIPT = """
import torch
from torch import nn
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(16, 32), nn.Linear(32, 4)
    def forward(self, x):
        return self.last(torch.relu(self.first(x)))
def lazy(net):
    net.first = nn.LazyLinear(32)
    net.train(False)(torch.randn(8, 16))
    return net
net = MADE
optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
for step in range(400):
    net.train()
    loss = net(torch.randn(8, 16)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    net.eval()
    with torch.no_grad():
        net(torch.randn(8, 16))
print("trained")
"""


@pytest.mark.parametrize(
    "made",
    ["torch.jit.script(Net())", "torch.jit.trace(Net(), torch.randn(8, 16))", "lazy(Net())"],
)
def test_they_are_watched_like_others(tmp_path: Path, made: str) -> None:
    code = SCRIPT.replace("MADE", made)
    run = watch_code(tmp_path, code, windows=["baseline", "ops"])
    assert (run.returncode, run.out) == (0, "trained\n"), run.err
    assert run.of("failure") == []
    evidence = run.evidence()
    modules, ops, layers = evidence.get(Modules), evidence.get(Ops), evidence.get(Layers)
    assert modules and ops and layers
    [net] = [x for x in modules.modules if x.calls_per_step]  # tracing calls the plain one, too
    assert (net.name, net.parameters) == ("Net", 16 * 32 + 32 + 32 * 4 + 4)
    lines = code.splitlines()
    assert net.trained_at and lines[net.trained_at.line - 1].startswith("    loss = net(")
    assert net.evaluated_at and lines[net.evaluated_at.line - 1].strip().startswith("net(")
    assert layers.classes["Linear"] >= 2


def test_a_recorded_graph_has_none_of_our_ops(tmp_path: Path) -> None:
    """As for an export after every epoch, in all windows."""
    code = SCRIPT.replace("MADE", "Net()").replace(
        "    net.eval()\n",
        "    net.eval()\n"
        "    if step % 8 == 0:\n"
        "        print(torch.jit.trace(net, torch.ones(2, 16)).graph)\n"
        "    if step == 160:\n"
        "        print(torch.jit.trace(Net(), torch.ones(2, 16)).graph)\n",
    )
    run = watch_code(tmp_path, code)
    assert run.returncode == 0, run.err
    assert run.of("failure") == []
    plain = subprocess.run(
        [sys.executable, "-W", "ignore", "script.py"], cwd=tmp_path, text=True,
        capture_output=True, check=True,
    )  # fmt: skip
    assert run.out == plain.stdout
    assert "TracerWarning" not in run.err


TAGGED = """
import torch
from torch import nn
torch.manual_seed(0)
calls = {}
class Tagged(torch.Tensor):
    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        calls[func.__name__] = calls.get(func.__name__, 0) + 1
        return super().__torch_function__(func, types, args, kwargs or {})
net = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 4))
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for step in range(400):
    loss = net(torch.randn(8, 16).as_subclass(Tagged)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(sorted(calls.items()))
"""


def test_code_of_a_subclass_of_tensors_runs_for_the_script_alone(tmp_path: Path) -> None:
    run = watch_code(tmp_path, TAGGED)
    assert run.of("failure") == []
    plain = subprocess.run(
        [sys.executable, "script.py"], cwd=tmp_path, text=True, capture_output=True, check=True
    )
    assert run.out == plain.stdout


MANY = """
import sys
import torch
layers = [torch.nn.Linear(4, 4) for _ in range(100)]  # 36 more than are described one by one
optimizer = torch.optim.SGD([p for layer in layers for p in layer.parameters()], lr=0.01)
watch = sys.modules["tdiag_probe.phases"].ModuleWatch
slow, original = [], watch._outermost
def outermost(self, original_call, module, args, kwargs):
    slow.append(step)
    return original(self, original_call, module, args, kwargs)
watch._outermost = outermost
for step in range(40):
    x = torch.ones(2, 4)
    for layer in layers:
        x = layer(x)
    optimizer.zero_grad()
    x.sum().backward()
    optimizer.step()
print(sum(at > 25 for at in slow))
"""


def test_modules_that_are_not_described_are_known_by_their_class(tmp_path: Path) -> None:
    run = watch_code(tmp_path, MANY, windows=["baseline"], profiling=True, steps=40)
    assert run.returncode == 0 and run.of("failure") == []
    assert run.out.strip() == "0"
