"""Which gradients a call of backward computes, and which are gone before their optimizer steps."""

from pathlib import Path

import pytest

from tdiag.evidence.training import DroppedGradients, UnusedBackward

from .harness import watch_code

MODELS = """
import torch
torch.manual_seed(0)
class Generator(torch.nn.Linear): pass
class Critic(torch.nn.Linear): pass
generator, critic = Generator(4, 8), Critic(8, 1)
of_generator = torch.optim.SGD(generator.parameters(), lr=0.01)
of_critic = torch.optim.SGD(critic.parameters(), lr=0.01)
"""
# Three critic steps for each of the generator. SET: whether gradients are deleted or set to zero.
ADVERSARIAL = (
    MODELS
    + """
for step in range(400):
    for _ in range(3):
        of_critic.zero_grad(set_to_none=SET)
        fakes = generator(torch.randn(16, 4))DETACH
        critic(fakes).mean().backward()
        of_critic.step()
    of_generator.zero_grad(set_to_none=SET)
    critic(generator(torch.randn(16, 4))).mean().backward()
    of_generator.step()
"""
)
# All gradients are used: accumulated over four backward calls, clipped, and by a closure.
USED = (
    MODELS
    + """
closed = torch.optim.LBFGS(generator.parameters(), lr=0.01, max_iter=3)
def closure():
    closed.zero_grad()
    loss = critic(generator(torch.randn(16, 4))).square().mean()
    loss.backward()
    return loss
for step in range(1200):
    critic(generator(torch.randn(16, 4))).square().mean().backward()
    if step % 4 == 3:
        torch.nn.utils.clip_grad_norm_(critic.parameters(), 1e-3)
        of_generator.step()
        of_critic.step()
        of_generator.zero_grad()
        of_critic.zero_grad()
    if step % 40 == 39:
        closed.step(closure)
"""
)
# Each parameter has an optimizer of its own, which steps within backward.
IN_HOOKS = """
import torch
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Linear(8, 1))
optimizers = {p: torch.optim.SGD([p], lr=0.01) for p in model.parameters()}
def update(parameter):
    optimizers[parameter].step()
    optimizers[parameter].zero_grad()
for parameter in model.parameters():
    parameter.register_post_accumulate_grad_hook(update)
for step in range(1200):
    model(torch.randn(16, 4)).square().mean().backward()
"""
# One line calls backward for both, in turn and each for its own optimizer.
SHARED = (
    MODELS
    + """
def descend(optimizer, loss):
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
def rest():
    return torch.randn(16, 4)
for step in range(1200):
    TURNS
"""
)
IN_TURN = """for optimizer, loss in ((of_critic, critic(torch.randn(16, 8)).mean()),
                            (of_generator, generator(rest()).mean()),
                            (of_generator, generator(rest()).square().mean())):
        descend(optimizer, loss)"""
APART = """descend(of_critic, critic(generator(rest())).mean())
    descend(of_generator, generator(rest()).mean())"""


def dropped(tmp_path: Path, code: str) -> dict[int, tuple[str, int, int, bool]]:
    run = watch_code(tmp_path, code, windows=["baseline", "sample"])
    assert run.returncode == 0, run.err
    assert run.of("failure") == []
    found = run.evidence().get(DroppedGradients)
    assert found is not None
    return {x.at.line: (x.module, x.values, x.kept, x.beyond) for x in found.lines if x.at}


def lines(code: str, text: str) -> list[int]:
    return [number for number, line in enumerate(code.splitlines(), 1) if text in line]


def test_fakes_that_are_not_detached(tmp_path: Path) -> None:
    code = ADVERSARIAL.replace("DETACH", "").replace("SET", "False")
    of_critic, of_generator = lines(code, ".backward()")
    assert dropped(tmp_path, code) == {
        of_critic: ("Generator", 40, 9, True),
        of_generator: ("Critic", 9, 40, False),
    }


def test_fakes_that_are(tmp_path: Path) -> None:
    code = ADVERSARIAL.replace("DETACH", ".detach()").replace("SET", "True")
    assert list(dropped(tmp_path, code)) == lines(code, ".backward()")[1:]


@pytest.mark.parametrize(
    "code",
    [USED, IN_HOOKS, SHARED.replace("TURNS", IN_TURN)],
    ids=["later", "within backward", "by a helper"],
)
def test_gradients_that_are_used(tmp_path: Path, code: str) -> None:
    assert dropped(tmp_path, code) == {}


FILTERED = """
import torch
torch.manual_seed(0)
model, bank = torch.nn.Linear(8, 8), torch.nn.Linear(8, 64)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(1200):
    x = torch.randn(16, 8)
    loss = (bank(model(x)) - bank(x)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


def test_what_is_for_parameters_without_an_optimizer(tmp_path: Path) -> None:
    """The bank computes its weights' gradients twice; once it is only passed through."""
    run = watch_code(tmp_path, FILTERED, windows=["baseline", "sample"])
    assert run.of("failure") == []
    found = run.evidence().get(UnusedBackward)
    assert found is not None
    # 16 × 8 × 64 for the weights, twice, of these, the same for the input, and 16 × 8 × 8.
    assert found.shares.products == pytest.approx(2 * 64 / (3 * 64 + 8))
    assert 0.3 < found.shares.nodes < 0.6


def test_a_helper_is_told_from_who_calls_it(tmp_path: Path) -> None:
    code = SHARED.replace("TURNS", APART)
    [line] = lines(code, "descend(of_critic")
    assert dropped(tmp_path, code) == {line: ("Generator", 40, 9, True)}
