"""What the probe writes of the process: its two clocks, paired at one moment; its framework."""

from __future__ import annotations

import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tdiag.evidence.machine import Environment
from tdiag.evidence.steps import Steps
from tdiag.probe import facts
from tdiag.probe.core import Probe

from .harness import watch_code

HELD_UP_S = 0.02


def test_clocks_are_paired_by_the_try_that_was_not_held_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine takes the core away between two readings, once in a while for milliseconds:
    all lanes of `tdiag view` lay off by that."""
    read, wait = time.time_ns, iter([HELD_UP_S, HELD_UP_S, 0.0, HELD_UP_S, HELD_UP_S])
    written: dict[str, Any] = {}

    def held_up() -> int:
        time.sleep(next(wait, 0.0))
        return read()

    recorder = SimpleNamespace(write=lambda kind, **fields: written.update(fields))
    probe = SimpleNamespace(recorder=recorder, started_ns=0, import_ns=0)
    apart = read() - time.perf_counter_ns()
    monkeypatch.setattr(time, "time_ns", held_up)
    facts.write_process(cast(Probe, probe))
    assert abs(written["unix_ns"] - written["t"] - apart) < HELD_UP_S * 1e9 / 4


@pytest.mark.parametrize(
    ("message", "lost"),
    [
        (
            "[/p/gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:3. GLHF!",
            "closed",
        ),
        (
            "[/p/gloo/transport/tcp/pair.cc:537] Read error [::1]:2: Connection reset by peer.",
            "closed",
        ),
        (
            "[/p/gloo/transport/tcp/unbound_buffer.cc:81] Timed out waiting 1800000ms for recv",
            "timed out",
        ),
        (
            "[enforce fail at /p/gloo/transport/tcp/pair.cc:446] op.length <= op.nbytes. 40 vs 20",
            "",
        ),
        ("[Errno 104] Connection reset by peer", ""),  # a server of the user's
    ],
)
def test_the_loss_of_another_rank_is_told_from_a_failure_of_its_own(
    message: str, lost: str
) -> None:
    assert facts.lost_peers(RuntimeError(message)) == lost


BROKEN = """
import sys, types
import torch
class Version:
    def __str__(self):
        raise RuntimeError("no version")
transformers = types.ModuleType("transformers")
transformers.__version__ = Version()
sys.modules["transformers"] = transformers
trainer = types.ModuleType("transformers.trainer")
exec("def update(optimizer): return optimizer.step()", trainer.__dict__)
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(60):
    optimizer.zero_grad()
    model(torch.ones(4, 8)).sum().backward()
    trainer.update(optimizer)
print("trained")
"""


def test_a_framework_that_cannot_be_told_is_left_out_and_the_report_says_so(
    tmp_path: Path,
) -> None:
    run = watch_code(tmp_path, BROKEN, windows=["baseline"], profiling=True, steps=30)
    assert (run.returncode, run.err) == (0, "")
    evidence = run.evidence()
    environment = evidence.get(Environment)
    assert environment is not None and environment.framework is None
    assert evidence.get(Steps) is not None
    (note,) = [note for note in evidence.notes if note.code == "probe-failed"]
    assert "driver" in note.text and "no version" in note.text


POPULATION = """
import torch
from torch.func import functional_call, grad, stack_module_state, vmap
net = torch.nn.Linear(64, 8)
weights, _ = stack_module_state([torch.nn.Linear(64, 8) for _ in range(4)])
def loss(weights, x):
    return functional_call(net, weights, (x,)).square().mean()
for step in range(400):
    gradients = vmap(grad(loss), in_dims=(0, None))(weights, torch.randn(32, 64))
    weights = {name: (w - 0.01 * gradients[name]).detach() for name, w in weights.items()}
print("trained")
"""


def test_the_fixed_cost_is_measured_beside_a_function_that_is_transformed(tmp_path: Path) -> None:
    """Its step ends where the model is called, within `vmap`, where nothing may call backward."""
    run = watch_code(tmp_path, POPULATION, windows=["baseline"])
    assert (run.returncode, run.out) == (0, "trained\n")
    assert run.of("failure") == []
    [price] = run.of("dispatch")[-1:]
    assert price["grad_op_ns"] > price["op_ns"] > 0
