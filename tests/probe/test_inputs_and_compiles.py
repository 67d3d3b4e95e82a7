"""What reaches the model, and what dynamo compiles again, on real small scripts."""

from pathlib import Path

import pytest

from tdiag.evidence.compiling import Compiles
from tdiag.evidence.feeding import Inputs
from tdiag.evidence.store import Evidence
from tdiag.evidence.training import Modules

from .harness import watch_code

NORMALISED = """
import torch
torch.manual_seed(0)
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.head = torch.nn.Linear(3 * 8 * 8 + 2, 1)
    def forward(self, images, more):
        return self.head(torch.cat([images.flatten(1), more["extra"]], 1))
model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(30):
    raw = torch.randint(0, 256, (64, 3, 8, 8), dtype=torch.uint8)
    images = raw.float() / 255 - torch.tensor([0.5, 0.0, 1.5]).view(3, 1, 1)
    optimizer.zero_grad()
    model(images, more={"extra": torch.ones(64, 2), "ids": raw}).mean().backward()
    optimizer.step()
"""

# A word language model carries its state on; a Trainer hands over what its collator makes.
BESIDE_TOKENS = """
import torch
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.cell = torch.nn.Embedding(9, 4), torch.nn.LSTM(4, 4)
    def forward(self, tokens, state=None, attention_mask=None, num_items_in_batch=None):
        return self.cell(self.table(tokens), state)
class Judge(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.head = torch.nn.Linear(4, 1)
    def forward(self, hidden):
        return self.head(hidden)
model, judge = Net(), Judge()
optimizer = torch.optim.SGD([*model.parameters(), *judge.parameters()], lr=0.01)
state = tuple(torch.full((1, 8, 4), 3.0) for _ in range(2))
for step in range(30):
    optimizer.zero_grad()
    tokens = torch.randint(0, 9, (2, 8))
    out, state = model(tokens, state, attention_mask=torch.ones(2, 8),
                       num_items_in_batch=torch.tensor(16.0))
    state = tuple(s.detach() for s in state)
    judge(out).mean().backward()
    optimizer.step()
"""

RECOMPILES = """
import torch
torch._dynamo.config.recompile_limit = 6
model = torch.nn.Linear(4, 4)
@torch.compile(backend="eager", dynamic=False)
def compute(x):  # COMPILED
    return model(x).relu().sum()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(40):
    optimizer.zero_grad()
    compute(torch.ones(4 + max(0, step - 9) // 2, 4)).backward()
    optimizer.step()
"""


# Its class is watched by the time that the model is compiled.
COMPILED_AFTER_A_CALL = """
import torch
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.head = torch.nn.Linear(4, 4)
    def forward(self, x):  # COMPILED
        return self.head(x).relu().sum()
net = Net()
net(torch.ones(2, 4))
model = torch.compile(net, backend="eager", dynamic=False)
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
for step in range(40):
    optimizer.zero_grad()
    model(torch.ones(4 + min(3, max(0, step - 9)), 4)).backward()
    optimizer.step()
"""

EVALUATES = """
import torch
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
def evaluate():
    model.eval()
    for x in HELD_OUT:
        model(x)  # EVALUATED
    model.train()
HELD_OUT = [torch.ones(2, 4)] * 3
for step in range(20):
    optimizer.zero_grad()
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    if step % 2:
        evaluate()
"""


def seen(tmp_path: Path, code: str, cold: bool = False) -> Evidence:
    run = watch_code(tmp_path, code, windows=["baseline"], cold=cold)
    assert run.returncode == 0, run.err
    assert run.of("failure") == []
    return run.evidence()


def test_an_evaluation_without_a_loader_is_named_by_the_line_that_calls_the_model(
    tmp_path: Path,
) -> None:
    modules = seen(tmp_path, EVALUATES).get(Modules)
    assert modules
    (found,) = modules.modules
    assert found.evaluated_at
    lines = EVALUATES.splitlines()
    assert "EVALUATED" in lines[found.evaluated_at.line - 1]
    assert found.evaluated_at.function == "evaluate"


def test_a_model_that_is_evaluated_by_a_method_of_its_own_is_named_by_who_calls_the_method(
    tmp_path: Path,
) -> None:
    """Only a layer inside is called as a module."""
    by_method = (
        EVALUATES.replace(
            "model = torch.nn.Linear(4, 4)",
            "class Scorer(torch.nn.Module):\n"
            "    def __init__(self):\n"
            "        super().__init__()\n"
            "        self.layer = torch.nn.Linear(4, 4)\n"
            "    def score(self, x):\n"
            "        return self.layer(x)\n"
            "model = Scorer()",
        )
        .replace("model(x)  #", "model.score(x)  #")
        .replace("model(torch", "model.score(torch")
    )
    modules = seen(tmp_path, by_method).get(Modules)
    assert modules
    (found,) = modules.modules
    assert found.evaluated_at and found.evaluated_at.function == "evaluate"
    assert found.trained_at and found.trained_at.function == "score"


def test_inputs_are_looked_at_where_they_reach_the_model(tmp_path: Path) -> None:
    evidence = seen(tmp_path, NORMALISED)
    inputs = evidence.get(Inputs)
    assert inputs
    images, extra = inputs.tensors
    assert (images.name, images.module, images.shape) == ("0", "Net", (64, 3, 8, 8))
    assert images.channel_mean == pytest.approx((0.0, 0.5, -1.0), abs=0.02)
    assert images.channel_std == pytest.approx((0.289,) * 3, abs=0.01)  # uniform: 1 ÷ √12
    assert (images.minimum, images.maximum) == (-1.5, 1.0)
    assert (extra.name, extra.channel_mean, extra.channel_std) == ("more.extra", (1.0,), (0.0,))
    assert evidence.get(Compiles) is None
    assert "compiles" in evidence.missing[Compiles]


@pytest.mark.training
def test_recompilations_are_counted_with_their_reason(tmp_path: Path) -> None:
    compiles = seen(tmp_path, RECOMPILES, cold=True).get(Compiles)
    assert compiles
    assert (compiles.frames, compiles.recompiles, compiles.limit_hit) == (7, 6, True)
    assert compiles.total_ns > compiles.clean_ns > 0
    assert 0 < compiles.clean_recompiles < 0.5
    reason = compiles.reasons[0]
    line = next(n for n, t in enumerate(RECOMPILES.splitlines(), 1) if "@torch.compile" in t)
    assert reason.at and reason.at.line == line
    assert "size mismatch" in reason.reason
    assert sum(r.times for r in compiles.reasons) >= 6


def test_states_masks_and_outputs_of_modules_are_not_the_first_input(tmp_path: Path) -> None:
    inputs = seen(tmp_path, BESIDE_TOKENS).get(Inputs)
    assert inputs is not None
    assert {x.name for x in inputs.tensors} >= {"1.0", "attention_mask", "num_items_in_batch"}
    assert not any(x.first for x in inputs.tensors)
    assert {x.module for x in inputs.tensors} == {"Net"}  # the judge is given the model's output
    assert next(x for x in inputs.tensors if x.name == "attention_mask").binary


@pytest.mark.training
def test_dynamo_compiles_the_users_forward_and_not_the_probes_wrapper(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The user's own log of recompilations, and what TD708 names, are those of a plain run."""
    monkeypatch.setenv("TORCH_LOGS", "recompiles")
    run = watch_code(tmp_path, COMPILED_AFTER_A_CALL, windows=["baseline"], cold=True)
    assert run.returncode == 0, run.err
    assert "Recompiling function forward" in run.err and "tdiag" not in run.err
    compiles = run.evidence().get(Compiles)
    assert compiles is not None and compiles.recompiles == 3
    line = COMPILED_AFTER_A_CALL[: COMPILED_AFTER_A_CALL.index("# COMPILED")].count("\n") + 1
    places = {(r.at.function, r.at.line) for r in compiles.reasons if r.at}
    assert places == {("forward", line)}
