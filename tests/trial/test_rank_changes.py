"""Changes of distributed training: one rank by itself, and two."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tdiag.duel.group import Pace, take_turns
from tdiag.trial.said import heard
from tests import warm
from tests.duel.scripts import program
from tests.probe.harness import environment, watch_code
from tests.zoo.table import BY_NAME

# Of one rank: what it would exchange is counted by a hook of the script's own.
ALONE = """
import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel
dist.init_process_group("gloo", init_method="file://{store}", rank=0, world_size=1)
model = DistributedDataParallel(torch.nn.Linear(4, 1){made})
reduced = []
def counted(state, bucket):
    reduced.append(1)
    return allreduce_hook(state, bucket)
model.register_comm_hook(None, counted)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
def one():
    model(torch.randn(8, 4)).mean().backward()
{train}
dist.destroy_process_group()
import time; time.sleep(0.5)  # torch aborts a Python that ends before gloo's threads
import sys
sys.stdout.write(str({show}))
"""
STEP = """for step in range(10):
    optimizer.zero_grad()
    for _ in range({times}):
        {micro}
        {between}
    optimizer.step()
"""


def step(times: str = "3", micro: str = "one()", between: str = "pass") -> str:
    return STEP.format(times=times, micro=micro, between=between)


def alone(
    folder: Path, change: tuple[str, str], show: str, train: str = "", made: str = ""
) -> tuple[str, set[str]]:
    """What the rank shows in the end, and what the change said."""
    code = ALONE.format(store=folder / "store", made=made, train=train, show=show)
    watched = watch_code(folder, code, windows=[], trial=[change])
    assert watched.returncode == 0, watched.err
    assert not watched.of("failure"), watched.of("failure")
    return watched.out, {r["what"] for r in watched.of("trial") if r.get("what")}


@pytest.mark.parametrize(
    ("name", "value", "show", "there", "already"),
    [
        ("bucket_cap_mb", "7", "model.bucket_bytes_cap >> 20", "7", ", bucket_cap_mb=7"),
        ("gradient_as_bucket_view", "", "model.gradient_as_bucket_view", "True",
         ", gradient_as_bucket_view=True"),
        ("static_graph", "", "model.static_graph", "True", ", static_graph=True"),
        ("find_unused_parameters", "off", "model.find_unused_parameters", "False", ""),
        ("broadcast_buffers", "off", "model.will_sync_module_buffers()", "False",
         ", broadcast_buffers=False"),
    ],
)  # fmt: skip
def test_an_argument_of_the_model_is_given_or_there_already(
    name: str, value: str, show: str, there: str, already: str, tmp_path: Path
) -> None:
    made = "" if already else ", find_unused_parameters=True"
    for folder, how, told in (("planted", made, " → "), ("healthy", already, " already")):
        (tmp_path / folder).mkdir()
        shown, said = alone(tmp_path / folder, (f"ddp.{name}", value), show, made=how)
        assert shown == there
        (what,) = said
        assert told in what and "script.py:7" in what
        assert name in what or "forward_sync_buffers" in what  # since torch 2.13


@pytest.mark.parametrize(
    ("train", "reduced", "told"),
    [
        # The first three steps tell how many there are.
        (step(), 3 * 3 + 7, "reduced in every 3th backward pass"),
        (step(times="1"), 10, "nothing is accumulated"),
        (step(times="1 + step % 3"), 19, "changes from step to step"),
        (step(between="optimizer.zero_grad()"), 30, "dropped between two backward passes"),
        (step(micro="(model(torch.randn(8, 4)) + model(torch.randn(8, 4))).mean().backward()"),
         30, "several times for one backward pass"),
        (step(between="with model.no_sync(): one()"), 30, "under no_sync() already"),
    ],
)  # fmt: skip
def test_accumulated_gradients_are_reduced_once_where_that_is_the_same(
    train: str, reduced: int, told: str, tmp_path: Path
) -> None:
    train = train.replace("range(10)", "range(20)") if "from step" in told else train
    reduced += 20 if "from step" in told else 0
    shown, said = alone(tmp_path, ("ddp.no_sync", ""), "len(reduced)", train)
    assert any(told in what for what in said), said
    assert int(shown) == reduced


def test_a_closure_needs_its_gradients_at_once(tmp_path: Path) -> None:
    train = """
optimizer = torch.optim.LBFGS(model.parameters(), max_iter=4, tolerance_change=0)
x = torch.randn(8, 4)
def closure():
    optimizer.zero_grad()
    loss = (model(x) - x[:, :1]).square().mean()
    loss.backward()
    closure.calls += 1
    return loss
closure.calls = 0
for step in range(8):
    optimizer.step(closure)
"""
    show = "len(reduced) == closure.calls"
    shown, said = alone(tmp_path, ("ddp.no_sync", ""), show, train)
    assert (shown, said) == ("True", {"its backward passes run inside the optimizer's step"})


RANKS = """
import json, sys, torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel
dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
model = DistributedDataParallel(torch.nn.Linear(4, 1))
reduced = []
def counted(state, bucket):
    reduced.append(1)
    return allreduce_hook(state, bucket)
model.register_comm_hook(None, counted)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
torch.manual_seed(rank)
for step in range(STEPS):
    optimizer.zero_grad()
    for part in range(2 if step == 8 else 3):  # an epoch ends there
        (model(torch.randn(8, 4)) - 1).square().mean().backward()
    optimizer.step()
    with open(f"{FOLDER}/weights-{rank}", "w") as file:
        json.dump([len(reduced), model.module.weight.tolist()], file)
dist.destroy_process_group()
import time; time.sleep(0.5)  # torch aborts a Python that ends before gloo's threads
"""


def weights(folder: Path) -> list[tuple[int, list[list[float]]]]:
    import json

    return [json.loads((folder / f"weights-{rank}").read_text()) for rank in (0, 1)]


@pytest.mark.training
def test_two_ranks_train_alike_with_fewer_reductions(tmp_path: Path) -> None:
    ends = []
    for name, changes in (("plain", []), ("changed", [("ddp.no_sync", "")])):
        folder = tmp_path / name
        folder.mkdir()
        script = folder / "script.py"
        script.write_text(RANKS.replace("STEPS", "12").replace("{FOLDER}", str(folder)))
        base = {**os.environ, "OMP_NUM_THREADS": "1"}
        env = environment(folder / "run", base, windows=[], trial=changes)
        ranks = warm.run_ranks(["script.py"], folder, env)
        assert [rank.returncode for rank in ranks] == [0, 0], ranks[0].stderr + ranks[1].stderr
        (reductions, first), (_, second) = weights(folder)
        assert first == second
        ends.append((reductions, first))
    (often, plain), (rarely, changed) = ends
    # Three steps to learn; of the short one no backward pass, but all before the optimizer's step.
    assert (often, rarely) == (35, 3 * 3 + 8)
    assert plain[0] == pytest.approx(changed[0], rel=1e-5)


@pytest.mark.training
@pytest.mark.parametrize("changes", [(("ceiling.communication", ""),), ()])
def test_two_ranks_keep_their_own_gradients(
    changes: tuple[tuple[str, str], ...], tmp_path: Path
) -> None:
    """From their first turn on; until then they keep step by what they exchange."""
    code = RANKS.replace("STEPS", "1000000").replace("{FOLDER}", str(tmp_path))
    side = replace(program(tmp_path, code=code), trial=changes)
    torchrun = BY_NAME["ddp"].launcher[:2]
    side = replace(side, command=(sys.executable, *torchrun, "--nproc-per-node", "2",
                                  side.command[1]))  # fmt: skip
    (taken,) = take_turns([side], tmp_path / "group", Pace(turns=3))
    (_, first), (_, second) = weights(tmp_path)
    said = heard([taken.run_dir])
    assert (first == second) is not bool(changes)
    assert said.applied == (("gradients are not reduced",) if changes else ())
    assert (said.answers or 0) > 0 if changes else said.answers is None
