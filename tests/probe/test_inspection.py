"""What is looked at between windows: schedules, gradients, modes, switches."""

from pathlib import Path

import pytest

from tdiag.evidence.feeding import Loaders
from tdiag.evidence.steps import Phases
from tdiag.evidence.store import Evidence
from tdiag.evidence.training import (
    Flags,
    Gradients,
    Modules,
    Optimizers,
    RepeatedHooks,
    Schedulers,
)

from .harness import watch_code

COMMON = """
import torch
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout(0.1), torch.nn.Linear(8, 1))
data = TensorDataset(torch.randn(960, 4), torch.randn(960, 1))
loader = DataLoader(data, batch_size=8, drop_last=True)
"""

SCHEDULED = (
    COMMON
    + """
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.99)  # SCHEDULE
scaler = torch.amp.GradScaler("cpu")
for x, y in loader:
    optimizer.zero_grad()
    loss = torch.nn.functional.mse_loss(model(x), y)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    schedule.step()
    norm = torch.stack([p.grad.norm() for p in model.parameters()]).norm()
    print(f"{norm.item():.6g}")
    with torch.no_grad():
        model(x)  # evaluates without model.eval()
"""
)

BARE = (
    COMMON
    + """
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model.eval()  # and never .train() again
for x, y in loader:
    optimizer.zero_grad(set_to_none=True)
    loss = torch.nn.functional.mse_loss(model(x), y)
    (loss / 0 if float(loss) < 0 else loss * float("inf")).backward()
    for group in optimizer.param_groups:
        group["lr"] *= 0.99
    optimizer.step()
"""
)


def seen(tmp_path: Path, code: str, *windows: str) -> tuple[Evidence, str]:
    run = watch_code(tmp_path, code, windows=["baseline", *windows])
    assert run.returncode == 0, run.err
    assert run.of("failure") == []
    return run.evidence(), run.out


def test_a_scheduled_and_scaled_training(tmp_path: Path) -> None:
    evidence, out = seen(tmp_path, SCHEDULED)
    line = next(i for i, t in enumerate(SCHEDULED.splitlines(), 1) if "# SCHEDULE" in t)
    schedulers, optimizers = evidence.get(Schedulers), evidence.get(Optimizers)
    assert schedulers and optimizers
    (schedule,) = schedulers.schedulers
    assert (schedule.name, schedule.created_at and schedule.created_at.line) == ("StepLR", line)
    assert schedule.steps
    (optimizer,) = optimizers.optimizers
    assert optimizer.lr_changed
    assert 0.1 > optimizer.rates[0] >= optimizer.rates[-1]
    gradients, flags, phases = evidence.get(Gradients), evidence.get(Flags), evidence.get(Phases)
    assert gradients and flags and phases
    printed = {float(line) for line in out.split()}
    assert gradients.not_finite == 0 and gradients.norms
    assert all(any(n == pytest.approx(p, rel=1e-4) for p in printed) for n in gradients.norms)
    assert flags.grad_scaler is True
    assert (phases.eval_train_mode_frac, phases.train_eval_mode_frac) == (1.0, 0.0)
    loaders = evidence.get(Loaders)
    assert loaders and loaders.loaders[0].drop_last is True


def test_rates_set_by_hand_gradients_that_burst_and_a_model_left_in_eval_mode(
    tmp_path: Path,
) -> None:
    evidence, _ = seen(tmp_path, BARE)
    schedulers, optimizers = evidence.get(Schedulers), evidence.get(Optimizers)
    gradients, flags, phases = evidence.get(Gradients), evidence.get(Flags), evidence.get(Phases)
    assert schedulers and optimizers and gradients and flags and phases
    assert schedulers.schedulers == ()
    assert optimizers.optimizers[0].lr_changed
    assert gradients.norms == () and gradients.not_finite
    assert flags.grad_scaler is False
    assert (phases.eval_train_mode_frac, phases.train_eval_mode_frac) == (None, 1.0)


@pytest.mark.parametrize(
    ("name", "held"), [("Adam", 4 * (2 * (4 * 8 + 8 + 8 + 1) + 4)), ("SGD", 0)]
)
def test_the_bytes_of_an_optimizers_state(name: str, held: int, tmp_path: Path) -> None:
    """Adam keeps two numbers a parameter and a step for each of four tensors; SGD keeps nothing."""
    code = BARE.replace("optim.SGD", f"optim.{name}")
    optimizers = seen(tmp_path, code)[0].get(Optimizers)
    assert optimizers and [x.state_bytes for x in optimizers.optimizers] == [held]


OTHERS = """
import torch

torch.manual_seed(0)
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = torch.nn.Linear(4, 8), torch.nn.Linear(8, 1)
    def forward(self, x):
        return self.head(self.body(x))
class Teacher(Net): pass
class ByHand(Net): pass
class Quiet(Net): pass
class Trained(Net): pass
class Held(Net): pass
class Target(Net): pass
class Cleared(Net): pass
net, teacher, by_hand, quiet, trained = Net(), Teacher(), ByHand(), Quiet(), Trained()
teacher.body.requires_grad = False  # not requires_grad_(False)
quiet.requires_grad_(False)
target, cleared = Target(), Cleared()  # averages of the net's weights
held = Held()  # in the optimizer, but its learning rate is 0
before = Net()
for net_before in (trained, before):
    net_before(torch.randn(8, 4)).sum().backward()  # before: their gradients stay
before.requires_grad_(False)
groups = [{"params": net.head.parameters()}, {"params": held.parameters(), "lr": 0.0}]
optimizer = torch.optim.SGD(groups, lr=0.01)  # the body was forgotten
for step in range(400):
    x = torch.randn(8, 4)
    with torch.no_grad():
        calm = quiet(x) + trained(x) + before(x)
    wanted = teacher(x) + target(x) + cleared(x)
    loss = (net(x) - wanted - by_hand(x) - held(x) - calm).square().mean()
    optimizer.zero_grad()
    for p in by_hand.parameters():
        p.grad = None
    loss.backward()
    optimizer.step()
    for p in by_hand.parameters():
        p.data -= 0.01 * p.grad
    with torch.no_grad():
        for average in (target, cleared):
            torch._foreach_lerp_(list(average.parameters()), list(net.parameters()), 0.01)
        for p in cleared.parameters():
            p.grad.zero_()  # as by a script that used it
nets = net, teacher, by_hand, held, target, cleared
print([bool(p._post_accumulate_grad_hooks) for net in nets for p in net.parameters()].count(True))
"""


def test_gradients_of_parameters_that_nothing_updates(tmp_path: Path) -> None:
    evidence, out = seen(tmp_path, OTHERS, "ops", "calls")
    assert out == "0\n", "hooks that are still on"
    modules = evidence.get(Modules)
    assert modules
    unused = {m.name: m.unused_gradients for m in modules.modules if m.unused_gradients}
    assert unused == {"Net": 40, "Teacher": 49, "Held": 49, "Target": 49}
    assert {m.name: m.unused_with_state for m in modules.modules if m.unused_with_state} == {
        "Held": 49
    }
    within = {m.name: m.unused_within for m in modules.modules if m.unused_within}
    assert within == {"Net": "body"}
    assert {"ByHand", "Quiet", "Trained", "Cleared"} <= {m.name for m in modules.modules}
    assert {m.name: m.frozen_by_name for m in modules.modules if m.frozen_by_name} == {
        "Teacher": "body"
    }


PAIR = """
import torch

class Pair(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.online, self.target = torch.nn.Linear(4, 4), torch.nn.Sequential(torch.nn.Linear(4, 4))

    def forward(self, x):
        return (self.online(x) - self.target(x)).square().mean()

pair = Pair()
groups = [{"params": [p]} for p in pair.online.parameters()]
optimizer = torch.optim.SGD(groups, lr=0.01)
for step in range(400):
    loss = pair(torch.randn(8, 4))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


def test_the_part_of_a_model_that_nothing_updates_and_groups_of_one_setting(
    tmp_path: Path,
) -> None:
    evidence, _ = seen(tmp_path, PAIR, "ops", "calls")
    modules, optimizers = evidence.get(Modules), evidence.get(Optimizers)
    assert modules and [m.unused_within for m in modules.modules] == ["target"]
    assert optimizers
    assert [(o.groups, o.settings) for o in optimizers.optimizers] == [(2, 1)]


HOOKED = (
    COMMON
    + """
class Stats:
    @torch.no_grad()
    def see(self, module, inputs, output):  # SEE
        self.mean = output.mean()

def once(module, inputs, output):
    pass

optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model[0].register_forward_hook(once)
model[2].register_forward_hook(once)
for trial in range(3):
    model[0].register_forward_hook(Stats().see)
for x, y in loader:
    optimizer.zero_grad()
    torch.nn.functional.mse_loss(model(x), y).backward()
    optimizer.step()
"""
)


def test_hooks_that_one_module_has_several_times(tmp_path: Path) -> None:
    hooks = seen(tmp_path, HOOKED, "ops")[0].get(RepeatedHooks)
    assert hooks is not None
    assert [(at.function, times) for at, times in hooks.times] == [("see", 3)]
