"""What torch.compile did, as the probe reads it of dynamo: on a real script with graph breaks, a
shape that changes and a number that changes."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tdiag.diagnose import diagnose
from tdiag.evidence.compiling import Compiles
from tests import warm

from .harness import watch_code

SCRIPT = """
import json, sys, torch
torch.manual_seed(0)
net = torch.nn.Linear(64, 64)
def note(x):
    print(end="")  # BREAK in a called function
    return x * 2
@torch.compile(backend="aot_eager", dynamic=False)
def compute(x):
    y = net(x)
    if len(x) > -y.sum() * 0:  # BRANCH
        y = note(y + 1)
    return y.mean()
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
for step in range(200):
    optimizer.zero_grad()
    compute(torch.ones(4 + (step > 9), 64)).backward()
    optimizer.step()
import torch._dynamo.utils as utils
from torch._dynamo.convert_frame import FRAME_COMPILE_COUNTER
with open("counters.json", "w") as file:
    json.dump([utils.counters, FRAME_COMPILE_COUNTER,
               [str(r.reason) for r in utils.graph_break_reasons],
               [[c.co_name, r] for c, r in utils.guard_failures.items()]], file)
"""


# Behind the break a model is called as plain Python, and the probe looks at it for the first time.
MODEL_BEHIND_A_BREAK = (
    SCRIPT[: SCRIPT.index("net =")]
    + """
first, second = torch.nn.Linear(128, 128), torch.nn.Linear(128, 1)
history = []
def note(x):
    for row in x.detach().tolist():
        history.append(sum(row))
    del history[:-100]
@torch.compile(backend="eager")
def compute(x):
    y = first(x).relu()
    note(y)
    return second(y).mean()
optimizer = torch.optim.SGD([*first.parameters(), *second.parameters()], lr=0.01)
for step in range(200):
    optimizer.zero_grad()
    compute(torch.ones(256, 128)).backward()
    optimizer.step()
"""
    + SCRIPT[SCRIPT.index("import torch._dynamo.utils") :]
)


def line(mark: str) -> int:
    return next(n for n, text in enumerate(SCRIPT.splitlines(), 1) if mark in text)


@pytest.mark.training
@pytest.mark.parametrize("script", [SCRIPT, MODEL_BEHIND_A_BREAK], ids=["breaks", "behind"])
def test_dynamos_counters_are_equal_with_and_without_tdiag(script: str, tmp_path: Path) -> None:
    """No graph break, no recompilation and no graph is added: under every window that runs beside
    compiled code."""
    bare, watched = tmp_path / "bare", tmp_path / "watched"
    bare.mkdir()
    watched.mkdir()
    (bare / "script.py").write_text(script)
    plainly = warm.run([str(bare / "script.py")], bare, {**os.environ, "OMP_NUM_THREADS": "1"})
    assert plainly.returncode == 0, plainly.stderr
    run = watch_code(watched, script, cold=True, short=True)
    assert run.returncode == 0, run.err
    assert run.of("failure") == []
    assert {"baseline1", "trace1", "calls1"} <= set(run.windows())
    both = [(folder / "counters.json").read_text() for folder in (bare, watched)]
    here = str(tmp_path)
    plain, ours = (
        json.loads(text.replace(f"{here}/bare", "").replace(f"{here}/watched", "")) for text in both
    )
    assert plain == ours


@pytest.mark.training
def test_the_report_has_every_break_and_every_failed_guard(tmp_path: Path) -> None:
    run = watch_code(tmp_path, SCRIPT, windows=["baseline", "trace"], cold=True, short=True)
    assert run.returncode == 0, run.err
    evidence = run.evidence()
    compiles = evidence.get(Compiles)
    assert compiles is not None
    found = diagnose(evidence).compiled
    assert found is not None
    breaks = {cut.at.line: cut for cut in found.breaks}
    assert set(breaks) == {line("BREAK"), line("BRANCH")}
    assert "print" in breaks[line("BREAK")].reason
    for cut in breaks.values():
        assert cut.per_step == pytest.approx(1.0)
        assert cut.ns is not None and cut.ns > 0
    assert any("size mismatch" in failed.reason for failed in found.recompiled)
    assert {row.at.function for row in found.functions} == {"compute", "note"}
    assert found.before_ns > 0 and sum(row.ns for row in found.functions) > 0
    assert set(found.shares) == {"graphs", "broken", "eager", "guards"}
    assert 0 < sum(found.shares.values()) < 1
    assert found.shares["graphs"] > 0 and found.shares["broken"] > 0
