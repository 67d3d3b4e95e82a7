"""Hooks that only look at the pass belong to the log."""

from __future__ import annotations

from pathlib import Path

import pytest

from tdiag.evidence.sampled import CallFrame, CallTrees
from tdiag.rules.examples import at, op_line, ops
from tdiag.rules.hooks import observing

MODULE = "/lib/torch/nn/modules/module.py"
HOOK = """
def make(name):
    def hook(module, inputs, output):
        stats[name] = output.detach().quantile(levels)
        {end}
    return hook
"""


@pytest.mark.parametrize(
    ("end", "grad_calls", "looks"),
    [
        ("return", 0.0, True),
        ("losses.append(output.mean())", 3.0, False),  # its gradients are recorded
        ("return output * mask", 0.0, False),  # it changes the pass
    ],
)
def test_a_hook_that_returns_nothing_and_learns_nothing(
    end: str, grad_calls: float, looks: bool, tmp_path: Path
) -> None:
    script = tmp_path / "monitor.py"
    script.write_text(HOOK.format(end=end))
    file = str(script)
    trees = CallTrees(
        training=(
            CallFrame(name="main", file=at(9).file, line=9, parent=-1, frac=1.0, user=True),
            CallFrame(name="_call_impl", file=MODULE, line=0, parent=0, frac=0.7, user=False),
            CallFrame(name="make.<locals>.hook", file=file, line=4, parent=1, frac=0.4, user=True),
        ),
        workers=(),
    )
    calls = ops(op_line(4, "forward", 9, grad_calls=grad_calls, at=at(4, "hook", file)))
    assert observing(calls, trees) == ({(file, 4)} if looks else set())
