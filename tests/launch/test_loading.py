"""`tdiag attach` to a training that runs without tdiag: the probe comes, measures, and leaves.

Below Python 3.14 a signal handler of the training stands in for ``sys.remote_exec``: both run a
file in the main thread, between two instructions, in a namespace of its own.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tdiag.cli.conclude import conclude
from tdiag.launch import attaching, loading, visiting
from tdiag.model.diagnosis import Diagnosis
from tdiag.probe import wire
from tdiag.sample.running import Running
from tests.launch.harness import script, tdiag
from tests.launch.test_attach import TRAINING, holder, started
from tests.launch.test_visiting import records

__all__ = ["started"]

REMOTE = hasattr(sys, "remote_exec")
HANDLER = """
import signal
def main(*_):
    try:
        with open(f"script-{os.getpid()}") as named, open(named.read()) as file:
            exec(compile(file.read(), file.name, "exec"), {"__builtins__": __builtins__})
    except FileNotFoundError:
        pass
signal.signal(signal.SIGUSR1, main)
"""
# What a probe would have left behind.
LEFT = """
        import gc
        from torch.utils.data import _utils, dataloader
        left = [name for name in sys.modules if name.startswith("tdiag")]
        for owner in (DataLoader, dataloader._BaseDataLoaderIter, _utils.fetch._MapDatasetFetcher,
                      torch.optim.SGD, torch.nn.Module, torch.Tensor, torch.autograd, torch, sys):
            for name, value in vars(owner).items():
                if "tdiag" in (value.__code__.co_filename if isinstance(value, type(main)) else ""):
                    left.append(name)
        for made in gc.get_objects():
            kinds = dataloader._BaseDataLoaderIter, _utils.fetch._BaseDatasetFetcher
            if issubclass(type(made), kinds):
                left += [name for name in vars(made) if "tdiag" in name]
        print("left", left, flush=True)
"""
PASSES = """
import itertools
if WORKERS:
    batches = iter(loader)
    del loader
else:
    batches = itertools.chain.from_iterable(itertools.repeat(loader))
"""
MADE = "DataLoader(Samples(), batch_size=16, num_workers=WORKERS)"
LIVING = TRAINING.replace("KIND, WORKERS", HANDLER + "KIND, WORKERS", 1)
# Without workers in epochs of ten batches; with workers in one, whose loader is gone.
LIVING = LIVING.replace("return 10**9", "return 10**9 if WORKERS else 160")
LIVING = LIVING.replace("for step", f"loader = {MADE}\n{PASSES}\nfor step", 1)
LIVING = LIVING.replace(f"enumerate({MADE})", "enumerate(batches)")
LIVING = LIVING.replace('        print("done"', f'{LEFT}        print("done"')


@pytest.fixture
def remote(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """``sys.remote_exec``, or what stands in for it."""

    def by_signal(_: str, pid: int, file: Path) -> subprocess.CompletedProcess[str]:
        (tmp_path / f"script-{pid}").write_text(str(file))
        os.kill(pid, signal.SIGUSR1)
        return subprocess.CompletedProcess([], 0, "", "")

    if not REMOTE:
        monkeypatch.setattr(loading, "run_script", by_signal)


def attached(pid: int, run_dir: Path) -> Diagnosis:
    return conclude(attaching.attach(pid, time_budget_s=8, out=run_dir, quiet=True))


@pytest.mark.training
@pytest.mark.parametrize("workers", [pytest.param("0", marks=pytest.mark.slow), "2"])
def test_the_probe_measures_and_leaves(
    tmp_path: Path, started: Any, remote: None, workers: str
) -> None:
    target = started(sys.executable, script(tmp_path, LIVING), "sleep", workers)
    run_dir = tmp_path / "run"
    found = attached(target.pid, run_dir)
    assert found.watched is None and found.step is not None and found.step.count > 10
    assert found.verdict.cls == "io", found.verdict
    assert any(finding.speedup and not finding.advisory for finding in found.findings)
    assert any("the probe was loaded into it" in note.text for note in found.notes)
    (loader,) = records(run_dir, "loader")
    assert loader["num_workers"] == int(workers) and loader["batch_size"] == 16
    assert loader["dataset_class"] == "Samples"
    assert (len(records(run_dir, "iterator")) > 1) is (workers == "0")
    assert records(run_dir, "optimizer")[0]["name"] == "SGD"
    assert not records(run_dir, "failure") and not (run_dir / wire.PROBE_ERROR).exists()
    ended = len(records(run_dir, "steps"))

    again = attached(target.pid, tmp_path / "again")
    assert again.verdict.cls == "io" and again.step is not None
    assert len(records(run_dir, "steps")) == ended
    said, code = target.end()
    assert said == "left []\ndone\n" and code == 7


RANKS = (
    "if True:"
    + HANDLER.replace("\n", "\n    ").replace("import signal", "import os, signal")
    + """
    import sys, time
    import torch
    import torch.distributed as dist

def rank(number):
    signal.signal(signal.SIGUSR1, main)
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method="file://" + os.path.abspath("meet"),
                            rank=number, world_size=2)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 64))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    step = 0
    while True:
        step += 1
        if number:
            time.sleep(0.01)
        loss = model(torch.ones(8, 64)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        enough = torch.tensor(float(os.path.exists("enough")))
        dist.all_reduce(enough)
        if step == 2 and not number:
            print("trains", flush=True)
        if enough:
            break
    dist.destroy_process_group()
    time.sleep(0.5)  # torch aborts a Python that ends before gloo's threads

if __name__ == "__main__":
    torch.multiprocessing.spawn(rank, nprocs=2)
    sys.exit(7)
"""
)


@pytest.mark.training
def test_all_ranks_that_a_script_has_spawned(tmp_path: Path, started: Any, remote: None) -> None:
    target = started(sys.executable, script(tmp_path, RANKS))
    found = attached(target.pid, tmp_path / "run")
    assert [rank.rank for rank in found.ranks] == [0, 1]
    assert found.step is not None and found.step.count > 10
    assert not records(tmp_path / "run", "failure")
    assert target.end() == ("", 7)


@pytest.mark.skipif(REMOTE, reason="this Python has sys.remote_exec")
def test_an_older_python_is_watched_from_outside(tmp_path: Path, started: Any) -> None:
    target = started(sys.executable, holder(tmp_path))
    done = tdiag("attach", str(target.pid), "--time-budget", "8", "--json", cwd=tmp_path)
    texts = [note["text"] for note in json.loads(done.stdout)["notes"]]
    version = f"Python {sys.version_info[0]}.{sys.version_info[1]} cannot load it, 3.14 can"
    assert any(text.endswith(version) for text in texts), texts
    assert target.end() == ("done\n", 7)


def running(pid: int, rank: int | None = None) -> Running:
    return Running(pid, ("python", "train.py"), rank, {}, False, "2.13.0")


def begun(run_dir: Path, *found: Running) -> str:
    """Why the probe was not loaded."""
    (run_dir / wire.CONTROL).mkdir(exist_ok=True)
    why = loading.Loading(found, run_dir).begin(lambda: True)
    assert not (run_dir / wire.CONTROL / wire.VISIT_ASKED).exists()
    return why


def test_a_program_that_is_no_interpreter_is_not_started(tmp_path: Path) -> None:
    other = subprocess.Popen(["sleep", "600"])
    try:
        assert "is no Python interpreter" in begun(tmp_path, running(other.pid))
    finally:
        other.kill()
        other.wait()


def test_another_users_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    assert "run tdiag as that user" in begun(tmp_path, running(os.getpid()))


def test_what_the_interpreter_says_is_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = "Traceback …\nPermissionError: [Errno 1] not allowed\n"
    failed = subprocess.CompletedProcess([], 1, "", said)
    monkeypatch.setattr(loading, "run_script", lambda *_: failed)
    assert begun(tmp_path, running(os.getpid())) == "PermissionError: [Errno 1] not allowed"


def run_here(script_of: Path) -> None:
    exec(compile(script_of.read_text(), str(script_of), "exec"), {})


def test_a_script_that_runs_too_late_does_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The main thread may be in a long call, and the request is withdrawn meanwhile."""
    ok = subprocess.CompletedProcess([], 0, "", "")
    monkeypatch.setattr(loading, "run_script", lambda *_: ok)
    monkeypatch.setattr(visiting, "ANSWER_WITHIN_S", 0.1)
    assert "did not answer" in begun(tmp_path, running(os.getpid()))
    run_here(tmp_path / wire.CONTROL / "load.py")
    assert not [name for name in sys.modules if name.startswith("tdiag_probe")]
    assert not (tmp_path / wire.EVENTS).exists()


def test_a_process_that_a_probe_watches_already(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def here(_: str, pid: int, script_of: Path) -> subprocess.CompletedProcess[str]:
        run_here(script_of)
        return subprocess.CompletedProcess([], 0, "", "")

    probe = loading.load_probe(loading.PROBE_FOLDER)
    monkeypatch.setitem(sys.modules, "tdiag_probe.assembly", object())
    monkeypatch.setattr(loading, "run_script", here)
    assert begun(tmp_path, running(os.getpid())) == "tdiag already watches this process"
    assert sys.modules["tdiag_probe"] is probe
    probe.forget()
