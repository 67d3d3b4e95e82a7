"""`%%tdiag` in IPython: one session of several cells, in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.launch.harness import NO_ROOF

SESSION = r'''
import io, json, os, sys, time
from contextlib import redirect_stdout
from IPython.core.interactiveshell import InteractiveShell

shell = InteractiveShell.instance()
seen = {}


def run(cell):
    """Whether it went well, what it raised, what it printed."""
    out = io.StringIO()
    with redirect_stdout(out):
        done = shell.run_cell(cell, store_history=True)
    error = done.error_before_exec or done.error_in_exec
    return [done.success, type(error).__name__ if error else "", out.getvalue()]


def latest():
    return os.path.realpath(".tdiag/runs/latest")


def state():
    """What a cell must leave as it was."""
    import gc, threading, traceback
    import torch
    ns = shell.user_ns
    things = [
        torch.optim.AdamW.step, torch.optim.Optimizer._patch_step_function, torch.Tensor.backward,
        torch.autograd.backward, torch.nn.Module.__call__, torch.save, sys.excepthook,
        torch.utils.data.DataLoader.__iter__,
        torch.utils.data._utils.fetch._MapDatasetFetcher.fetch,
        threading.excepthook, traceback.TracebackException.__init__, sys.getprofile(),
        sys.gettrace(), ns["optimizer"].__dict__["step"], ns["Net"].__dict__.get("__call__"),
    ]
    lengths = [len(gc.callbacks), len(sys.meta_path)]
    return [*map(id, things), *lengths, dict(os.environ), list(sys.path)]


run("%load_ext tdiag")
run("""
import torch
from torch.utils.data import DataLoader, Dataset
class Numbers(Dataset):
    def __len__(self):
        return 2400
    def __getitem__(self, i):
        total = sum(k * k for k in range(2000))
        return torch.full((8,), i / 2400), torch.tensor(float(total % 7))
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(8, 1)
    def forward(self, x):
        return self.layer(x)[:, 0]
""")
MAKE = """
torch.manual_seed(0)
net = Net()
model = torch.compile(net, backend="eager")
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
schedule = torch.optim.lr_scheduler.StepLR(optimizer, 100)
loader = DataLoader(Numbers(), batch_size=16)
for x, y in list(loader)[:2]:
    torch.nn.functional.mse_loss(model(x), y).backward()
"""
TRAIN = """
n = 0
for x, y in loader:
    optimizer.zero_grad()
    loss = torch.nn.functional.mse_loss(model(x), y)
    loss.backward()
    optimizer.step()
    schedule.step()
    n += 1
n
"""
INTERRUPT = """n += 1
    if n == 30:
        raise KeyboardInterrupt"""
SWALLOW = """    try:
        optimizer.step()
    except SystemExit:
        pass"""
run(MAKE)
run(TRAIN)
bare = shell.user_ns["net"].layer.weight.tolist()
run(MAKE)
from torch._dynamo.utils import counters
before, frames = state(), dict(counters["frames"])
seen["watched"] = run("%%tdiag --time-budget 5\n" + TRAIN)
seen["run"] = latest()
seen["label"] = f"In[{shell.execution_count - 1}]"
seen["the same weights"] = shell.user_ns["net"].layer.weight.tolist() == bare
seen["compiled again"] = dict(counters["frames"]) != frames
seen["left as it was"] = state() == before
seen["modules left"] = [name for name in sys.modules if name.startswith("tdiag_probe")]

seen["raises"] = run("%%tdiag --steps 10\nfor x, y in loader:\n    model(x)\n    1 / 0")
seen["still as it was"] = state() == before
seen["interrupted"] = run("%%tdiag --steps 10\n" + TRAIN.replace("n += 1", INTERRUPT))
seen["interrupted run"] = latest()
seen["stopped"] = run("%%tdiag --profiling --steps 12\n" + TRAIN)
seen["stopped run"] = latest()
seen["stopped after"] = shell.user_ns["n"]
swallowing = TRAIN.replace("    optimizer.step()", SWALLOW)
seen["swallowed"] = run("%%tdiag --profiling --steps 12\n" + swallowing)
seen["runs before"] = len(os.listdir(".tdiag/runs"))
seen["syntax"] = run("%%tdiag\nfor")
seen["option"] = run("%%tdiag --nonsense\n1")
seen["runs after"] = len(os.listdir(".tdiag/runs"))
seen["no torch steps"] = run("%%tdiag\n6 * 7;")
seen["after all"] = run(TRAIN)
seen["as it was after all"] = state() == before
run("loader = DataLoader(Numbers(), batch_size=16, num_workers=1, persistent_workers=True)")
seen["workers"] = run("%%tdiag --steps 5\n" + TRAIN)
seen["workers' run"], seen["workers' end"] = latest(), time.perf_counter_ns()
run(TRAIN)
run("del loader")
print("SEEN" + json.dumps(seen))
'''


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Any:
    pytest.importorskip("IPython")
    folder = tmp_path_factory.mktemp("notebook")
    (folder / "session.py").write_text(SESSION)
    done = subprocess.run(
        [sys.executable, "session.py"], cwd=folder, capture_output=True, text=True, timeout=900,
        env={**os.environ, "PYTHONPATH": str(NO_ROOF)},
    )  # fmt: skip
    line = next((x for x in done.stdout.splitlines() if x.startswith("SEEN")), None)
    assert line is not None, done.stdout[-3000:] + done.stderr[-3000:]
    return json.loads(line[4:])


def diagnosis(seen: Any, name: str) -> Any:
    return json.loads((Path(seen[name]) / "diagnosis.json").read_text())


pytestmark = [pytest.mark.training, pytest.mark.timeout(900)]


def test_the_cell_runs_as_ever_and_is_diagnosed(seen: Any) -> None:
    success, _, printed = seen["watched"]
    assert success and "150" in printed, "the last expression is shown"
    assert seen["the same weights"]
    found = diagnosis(seen, "run")
    assert found["verdict"]["class"] in ("cpu", "unknown", "overhead")
    assert found["step"]["count"] >= 5
    assert {name: said["state"] for name, said in found["capture"].items()}["trace"] == "captured"
    assert "Step time" in printed
    assert not any(finding["code"] == "TD001" for finding in found["findings"]), "it has a schedule"


def test_nothing_stays_in_the_kernel(seen: Any) -> None:
    assert seen["left as it was"] and seen["still as it was"] and seen["as it was after all"]
    assert seen["modules left"] == []
    assert not seen["compiled again"]


def test_places_are_lines_of_cells(seen: Any) -> None:
    folder = Path(seen["run"]) / "cells"
    assert (folder / f"{seen['label']}.py").read_text().splitlines()[
        4
    ] == "    optimizer.zero_grad()"
    text = (Path(seen["run"]) / "diagnosis.json").read_text()
    assert "ipython-input" not in text and "In[2].py" in text
    events = "".join(file.read_text() for file in (Path(seen["run"]) / "events").iterdir())
    assert "ipython-input" not in events and "session.py" not in text


def test_an_exception_passes_untouched(seen: Any) -> None:
    success, name, printed = seen["raises"]
    assert (success, name) == (False, "ZeroDivisionError")
    assert "the cell ended with ZeroDivisionError" in printed
    assert printed.count("ZeroDivisionError") == 3, "head and foot of one traceback, and that"
    assert "1 / 0" in printed and "tdiag importlib" not in printed
    assert "magic.py" not in printed, "no frame of ours"


def test_an_interrupted_cell_is_diagnosed_as_far_as_it_came(seen: Any) -> None:
    assert seen["interrupted"][1] == "KeyboardInterrupt"
    assert diagnosis(seen, "interrupted run")["step"]["count"] >= 1


def test_the_cell_ends_with_its_evidence_where_that_was_asked_for(seen: Any) -> None:
    assert seen["stopped"][:2] == [True, ""]
    assert 10 <= seen["stopped after"] < 60
    assert diagnosis(seen, "stopped run")["step"]["count"] >= 1
    assert seen["swallowed"][0], "no signal ends a kernel"
    assert seen["after all"][0]


def test_what_cannot_run_makes_no_run(seen: Any) -> None:
    assert seen["syntax"][1] == "SyntaxError"
    assert seen["option"][1] == "UsageError"
    assert seen["runs before"] == seen["runs after"]


def test_a_cell_without_steps_says_so(seen: Any) -> None:
    success, _, printed = seen["no torch steps"]
    assert success and "no training step" in printed
    assert "Out[" not in printed, "of an expression with a semicolon nothing is shown"


def test_workers_that_outlive_the_cell_measure_no_more(seen: Any) -> None:
    """Their fetches went on to be written into the run of a cell long over."""
    assert seen["workers"][0]
    fetches = [
        record["t"]
        for file in (Path(seen["workers' run"]) / "events").iterdir()
        for record in map(json.loads, file.read_text().splitlines())
        if record["kind"] == "fetch"
    ]
    assert fetches and max(fetches) < seen["workers' end"]
