"""Changes of single calls of torch: each has its effect, and leaves alone what is no such call."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.probe.harness import watch_code

# Where torch.cuda would ask the driver, a list is written.
ON_A_DEVICE = """
import sys, torch
asked = []
def ask():
    asked.append(1)
    raise KeyError
torch.cuda._lazy_init = torch.cuda.is_initialized = torch.cuda.memory.is_initialized = ask
space = {{"torch": torch}}
exec(compile("def of_torch(): torch.cuda.{name}()", torch.__file__, "exec"), space)
def call(function):
    try:
        function()
    except KeyError:
        pass
call(lambda: torch.cuda.{name}())
mine = len(asked)
call(space["of_torch"])
"""
CHECKPOINTED = """
import torch
from torch.utils.checkpoint import checkpoint
runs = []
torch.manual_seed(0)
layer = torch.nn.Linear(2, 2)
def block(x, *, twice):
    runs.append(twice)
    return torch.nn.functional.dropout(layer(x))
x = torch.ones(1, 2, requires_grad=True)
for _ in range(3):
    checkpoint(block, x, use_reentrant=False, twice=True).sum().backward()
"""
COMPILED = """
import torch
from torch._dynamo.utils import counters
@torch.compile(backend="eager", dynamic={dynamic})
def twice(x):
    return x * 2
for size in (3, 4, 5, 6):
    twice(torch.ones(size))
"""
CLIPPED = """
import torch
from torch.nn.utils import clip_grad_norm_, clip_grad_value_
norms, original = [], torch._foreach_norm
def counted(tensors, *args):
    norms.append(len(tensors))
    return original(tensors, *args)
torch._foreach_norm = counted
layer = torch.nn.Linear(2, 2)
layer(torch.ones(1, 2)).sum().backward()
clip_grad_norm_(layer.parameters(), 1.0, foreach={foreach})
clip_grad_norm_(layer.parameters(), 1.0, 2.0, False, {foreach})
clip_grad_value_(layer.parameters(), 1.0, {foreach})
"""
SENT = """
import torch
constant, changed, written = torch.ones(2), torch.ones(2), torch.ones(2)
constants, changing, writing, batches = [], [], [], []
for step in range(5):
    constants.append(constant.to("meta"))
    changing.append(changed.add_(1).to("meta"))
    writing.append(written.to("meta").add_(1))
    batches.append((torch.ones(2) + step).to("meta"))
def different(tensors): return len({id(tensor) for tensor in tensors})
"""
DISTILLED = """
import torch
torch.manual_seed(0)
student, teacher, by_hand, later, still, average = nets = [torch.nn.Linear(3, 2) for _ in range(6)]
groups = [{"params": student.parameters()}, {"params": still.parameters(), "lr": 0.0}]
optimizer = torch.optim.SGD(groups, lr=0.1)
another = torch.optim.SGD(later.parameters(), lr=0.1)
for step in range(20):
    x = torch.ones(4, 3)
    loss = (student(x) - teacher(x) - average(x)).square().mean()
    loss = loss + (by_hand(x) + later(x) + still(x)).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    with torch.no_grad():
        for parameter in by_hand.parameters():
            parameter -= 0.1 * parameter.grad
            parameter.grad.zero_()
        for mean, parameter in zip(average.parameters(), student.parameters()):
            mean.lerp_(parameter, 0.1)
trained = [net.weight.requires_grad for net in nets]
"""
# Whether the generator's backward changes the critic's gradients, in the last steps.
ADVERSARIAL = """
import torch
torch.manual_seed(0)
generator, critic = torch.nn.Linear(4, 8), torch.nn.Linear(8, 1)
of_generator = torch.optim.SGD(generator.parameters(), lr=0.01)
of_critic = torch.optim.SGD(critic.parameters(), lr=0.01)
computed = []
def descend(optimizer, loss):
    {zero_grad}
    loss.backward()
    optimizer.step()
for step in range(40):
    fakes = generator(torch.randn(16, 4))
    descend(of_critic, critic(fakes.detach()).square().mean())
    before = critic.weight.grad.clone()
    descend(of_generator, -critic(fakes).mean())
    computed.append(not torch.equal(critic.weight.grad, before))
"""
LEARNED = "(sum(computed[-8:]), (generator.weight.sum() + critic.weight.sum()).item())"
SLICED = """
import torch
weight = torch.ones(4, requires_grad=True)
optimizer = torch.optim.SGD([weight], lr=0.0)
seen = []
for step in range(5):
    x = (torch.arange(12.0).view(1, 3, 4) + step) * weight
    x.retain_grad()
    for t in range(3):
        part = x[{index}]
        seen.append(type(part.grad_fn).__name__)
        part.square().sum().backward(retain_graph=True)
    optimizer.step()
def kinds():
    return *seen[-3:], x.new_tensor(1.0).item(), len(seen) // 3
"""
LOADED = """
import torch
from torch.utils.data import DataLoader
loader = DataLoader(torch.ones(8), num_workers=2{order})
"""


@pytest.mark.parametrize(
    ("change", "code", "show", "plain", "changed", "told"),
    [
        ("torch.synchronize=off", ON_A_DEVICE.format(name="synchronize"), "(mine, len(asked))",
         "(1, 2)", "(0, 1)", "torch.cuda.synchronize() at script.py:15 does nothing"),
        ("torch.empty_cache=off", ON_A_DEVICE.format(name="empty_cache"), "(mine, len(asked))",
         "(1, 2)", "(0, 1)", "torch.cuda.empty_cache() at script.py:15 does nothing"),
        ("torch.checkpoint=off", CHECKPOINTED, "(len(runs), float(layer.weight.grad.sum()))",
         "(6, SUM)", "(3, SUM)", "checkpoint() at script.py:12 keeps activations"),
        ("torch.compile_dynamic", COMPILED.format(dynamic=False),
         "counters['stats']['unique_graphs']", "4", "1",
         "torch.compile() at script.py:4: dynamic=True"),
        ("torch.compile_dynamic", COMPILED.format(dynamic=True),
         "counters['stats']['unique_graphs']", "1", "1", ""),
        ("optimizer.clip_foreach", CLIPPED.format(foreach=False), "norms", "[]", "[2, 2]",
         "clip_grad_norm_() at script.py:11: foreach=True"),
        ("optimizer.clip_foreach", CLIPPED.format(foreach=None), "norms", "[2, 2]", "[2, 2]", ""),
        ("copies.once", SENT, "[*map(different, (constants, changing, writing, batches))]",
         "[5, 5, 5, 5]", "[2, 5, 5, 5]", "to() at script.py:6 returns its last copy"),
        ("model.unused_gradients=off", DISTILLED, "(trained, student.weight.sum().item())",
         "([True, True, True, True, True, True], SUM)",
         "([True, False, True, True, False, False], SUM)",
         "24 parameters of Linear get no gradients"),
        ("model.dropped_gradients=off", ADVERSARIAL.format(zero_grad="optimizer.zero_grad()"),
         LEARNED, "(8, SUM)", "(0, SUM)",
         "backward at script.py:10 computes no gradients for 9 parameters"),
        ("model.dropped_gradients=off", ADVERSARIAL.format(zero_grad="pass"), LEARNED,
         "(8, SUM)", "(8, SUM)", ""),
        ("model.slices_at_once", SLICED.format(index=":, t"), "(*kinds(), float(x.grad.sum()))",
         "('SelectBackward0', 'SelectBackward0', 'SelectBackward0', 1.0, 5, SUM)",
         "('SelectBackward0', 'UnbindBackward0', 'UnbindBackward0', 1.0, 5, SUM)",
         "slices at script.py:10 come from one unbind(1)"),
        ("model.slices_at_once", SLICED.format(index=":, 0"), "(*kinds(), float(x.grad.sum()))",
         "('SelectBackward0', 'SelectBackward0', 'SelectBackward0', 1.0, 5, SUM)",
         "('SelectBackward0', 'SelectBackward0', 'SelectBackward0', 1.0, 5, SUM)", ""),
        ("loader.in_order=off", LOADED.format(order=""), "loader.in_order", "True", "False",
         "DataLoader at script.py:4: in_order True → False"),
        ("loader.in_order=off", LOADED.format(order=", in_order=False"), "loader.in_order",
         "False", "False", ""),
    ],
)  # fmt: skip
def test_it_takes_effect_where_there_is_something_to_change(
    change: str, code: str, show: str, plain: str, changed: str, told: str, tmp_path: Path
) -> None:
    """``told``: "" where there is nothing; SUM: any number, which both sides have."""
    name, _, value = change.partition("=")
    shown, said = [], []
    for side, trial in (("plain", []), ("changed", [(name, value)])):
        (tmp_path / side).mkdir()
        whole = f"{code}\nimport sys\nsys.stdout.write(str({show}))\n"
        watched = watch_code(tmp_path / side, whole, windows=[], trial=trial)
        assert watched.returncode == 0, watched.err
        assert not watched.of("failure"), watched.of("failure")
        shown.append(watched.out)
        said = [r["what"] for r in watched.of("trial") if r["state"] == "applied"]
    if "SUM" in plain:
        number = shown[0].rpartition(" ")[2].strip(")")
        plain, changed = plain.replace("SUM", number), changed.replace("SUM", number)
    assert shown == [plain, changed]
    assert told in said if told else not said, said
