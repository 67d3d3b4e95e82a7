"""Variables of debugging in the environment of the program."""

from __future__ import annotations

from pathlib import Path

import pytest

from tdiag.evidence.machine import DebugVariables

from .harness import watch_code

SCRIPT = """
import torch
model = torch.nn.Linear(4, 1)
for step in range(100_000):
    model.zero_grad()
    model(torch.ones(2, 4)).sum().backward()
    with torch.no_grad():  # by hand: an optimizer imports what takes longer than torch itself
        for weight in model.parameters():
            weight -= 0.01 * weight.grad
"""


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
    cold = "PYTHONDEVMODE" in variables  # Python itself reads it, when it starts
    run = watch_code(tmp_path, SCRIPT, windows=["baseline"], profiling=True, steps=60, cold=cold)
    found = run.evidence().get(DebugVariables)
    assert found is not None
    assert list(found.values) == ([seen] if seen else [])
