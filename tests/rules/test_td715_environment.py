"""Environment variables of debugging."""

from __future__ import annotations

from pathlib import Path

import pytest

from tdiag.diagnose.engine import run_rule
from tdiag.evidence.machine import DebugVariables
from tdiag.model.diagnosis import Finding
from tdiag.rules.catalogue import find
from tdiag.rules.examples import budget, environment
from tests.probe.harness import watch_code

RULE = find("TD715")
SCRIPT = """
import torch
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(100_000):
    optimizer.zero_grad()
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
"""


def judged(*kinds: object, **values: str) -> Finding | None:
    found = run_rule(RULE, RULE.fires().add(DebugVariables(values=values), *kinds))  # type: ignore[arg-type]
    assert found is None or isinstance(found, Finding)
    return found


def test_each_counts_only_where_it_costs() -> None:
    on_cpu = budget(forward=60, data_wait_cpu=40)
    assert judged(CUDA_LAUNCH_BLOCKING="1") is not None
    assert judged(on_cpu, CUDA_LAUNCH_BLOCKING="1") is None
    assert judged(TORCH_DISTRIBUTED_DEBUG="DETAIL") is None
    assert judged(environment(world_size=2), TORCH_DISTRIBUTED_DEBUG="DETAIL") is not None
    assert judged() is None


def test_only_what_was_measured_is_promised() -> None:
    blocking = judged(CUDA_LAUNCH_BLOCKING="1")
    debug = judged(budget(forward=60, data_wait_cpu=40), PYTHONMALLOC="debug")
    assert blocking is not None and blocking.advisory
    assert debug is not None and debug.components == ("data_wait_cpu",)


@pytest.mark.parametrize(
    ("variables", "seen"),
    [
        ({"CUDA_LAUNCH_BLOCKING": "1", "TORCH_DISTRIBUTED_DEBUG": "INFO"}, "CUDA_LAUNCH_BLOCKING"),
        ({"CUDA_LAUNCH_BLOCKING": "0", "PYTHONMALLOC": "malloc"}, None),
        ({"PYTHONDEVMODE": "1"}, "PYTHONDEVMODE"),
    ],
)
def test_the_probe_reads_those_that_are_on(
    tmp_path: Path, variables: dict[str, str], seen: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    run = watch_code(tmp_path, SCRIPT, windows=["baseline"], profiling=True, steps=60, cold=True)
    found = run.evidence().get(DebugVariables)
    assert found is not None
    assert list(found.values) == ([seen] if seen else [])
