"""TD736 beyond its example: what counts as torch.optim, and how many optimizers are many."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from tdiag.evidence.sampled import CallFrame, CallTrees
from tdiag.evidence.training import Optimizer, Optimizers
from tdiag.rules import td736_optimizer_for_each_tensor as rule
from tdiag.rules.base import Found
from tdiag.rules.examples import MS, at, budget, stacks

STEP = budget(forward=10, backward=80, optimizer=10)
ADAM = Optimizer(name="AdamW", created_at=at(66), tensors=1, config={})


def frame(name: str, file: str, parent: int, share: float) -> CallFrame:
    user = not file.startswith("/opt")
    return CallFrame(
        name=name, file=file, line=7 if user else 0, parent=parent, frac=share, user=user
    )


def checked(made: tuple[Optimizer, ...], *frames: CallFrame) -> Found | None:
    trees = CallTrees(training=(frame("main", "/home/me/train.py", -1, 1.0), *frames), workers=())
    return rule.check(STEP, Optimizers(optimizers=made), stacks(), trees)


def test_an_update_and_its_schedule_count_once_each() -> None:
    found = checked(
        (ADAM,) * 91,
        frame("step", "/opt/lib/torch/optim/lr_scheduler.py", 0, 0.3),
        frame("step", "/opt/lib/torch/optim/optimizer.py", 1, 0.3),
        frame("adam", "/opt/lib/torch/optim/adam.py", 2, 0.2),
        frame("update_wrapper", "/opt/lib/python3.11/functools.py", 1, 0.1),  # torch calls it
        frame("zero_grad", "/opt/lib/torch/optim/optimizer.py", 0, 0.1),
        frame("forward", "/opt/lib/torch/nn/modules/linear.py", 0, 0.4),
    )
    assert found is not None and found.at == at(66)
    assert "take 40% of the training thread's time" in found.summary
    assert found.gain is not None
    assert found.gain.low_ns < 40 * MS * (1 - 1 / rule.FOREACH_LOW) < 40 * MS < found.gain.high_ns


@pytest.mark.parametrize(
    ("number", "lines", "fires"), [(12, 1, True), (11, 1, False), (24, 12, False)]
)
def test_a_few_models_have_an_optimizer_each(number: int, lines: int, fires: bool) -> None:
    made = tuple(replace(ADAM, created_at=at(60 + n % lines)) for n in range(number))
    step = frame("step", "/opt/lib/torch/optim/optimizer.py", 0, 0.5)
    assert (checked(made, step) is not None) is fires
