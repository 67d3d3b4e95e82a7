"""`tdiag attach` to a training that `tdiag run` started: its probe measures one more pass."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from tdiag.launch import visiting
from tdiag.probe import dynamo, visits, wire
from tests.launch.harness import TDIAG, latest, tdiag, wait_for
from tests.launch.test_attach import RANKS, TRAINING, attached, line_of, script, started

__all__ = ["started"]


def records(run_dir: Path, kind: str) -> list[dict[str, Any]]:
    files = (run_dir / wire.EVENTS).iterdir()
    lines = [line for file in files for line in file.read_text().splitlines(keepends=True)]
    found = [json.loads(line) for line in lines if line.endswith("\n")]
    return [record for record in found if record["kind"] == kind]


def resting(folder: Path) -> Path:
    """The run's directory, once its windows are over and late windows come."""
    wait_for((folder / ".tdiag" / "runs" / "latest").exists)
    own = latest(folder)
    wait_for(lambda: len(records(own, "late")) > 3)
    return own


RUN = [*TDIAG, "run", "--time-budget", "3", "-q"]


@pytest.mark.training
def test_another_pass_of_the_probe_in_a_training_that_goes_on(tmp_path: Path, started: Any) -> None:
    """Its workers live since before the pass, and a scheduler has wrapped its optimizer's step."""
    script(
        tmp_path,
        TRAINING.replace(
            "optimizer = torch.optim.SGD(model.parameters(), lr=0.01)",
            "optimizer = torch.optim.SGD(model.parameters(), lr=0.01)\n"
            "scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 10**6)",
        ).replace("optimizer.step()", "optimizer.step(); scheduler.step()"),
    )
    run = started(*RUN, "train.py", "sleep", "1")
    own = resting(tmp_path)
    found = attached(tmp_path, run.pid)
    visit = latest(tmp_path)
    assert visit != own
    assert found["step"]["count"] > 10 and found["watched"] is None
    assert found["verdict"]["class"] == "io", found["verdict"]
    first = next(f for f in found["findings"] if not f["advisory"])
    assert first["recoverable_ns"] > 0.2 * found["step"]["mean_ns"], first
    assert any(f"tdiag report {own}" in note["text"] for note in found["notes"])
    loader = records(visit, "loader")
    assert loader[0]["at"][1] == line_of("enumerate(DataLoader(") + 1, "the run's probe knew it"
    assert records(visit, "optimizer")[0]["at"][1] == line_of("torch.optim.SGD")
    # The run goes on as before, and its evidence is as if nobody had come.
    before = len(records(own, "late"))
    wait_for(lambda: len(records(own, "late")) > before + 1)
    late = records(own, "late")
    assert late[before]["i"] > late[before - 1]["i"] + found["step"]["count"]
    assert not records(own, "failure") and not records(visit, "failure")
    steps = len(records(visit, "steps"))
    again = attached(tmp_path, run.pid)
    assert again["step"]["count"] > 10 and latest(tmp_path) != visit
    assert len(records(visit, "steps")) == steps
    said, code = run.end()
    assert code == 7 and "done" in said and "Traceback" not in said


@pytest.mark.training
def test_a_pass_needs_all_ranks(tmp_path: Path, started: Any) -> None:
    script(tmp_path, RANKS)
    launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "train.py"]
    run = started(*RUN, "--", sys.executable, *launch)
    own = resting(tmp_path)
    found = attached(tmp_path, run.pid)
    assert found["verdict"]["class"] == "io", found["verdict"]
    assert "Rank 1 makes the other rank wait" in found["verdict"]["summary"]
    assert [rank["late"] for rank in found["ranks"]] == [False, True]
    assert not records(own, "failure") and not records(latest(tmp_path), "failure")
    assert run.end()[1] == 0


@pytest.mark.training
def test_ctrl_c_ends_the_pass_and_not_the_training(tmp_path: Path, started: Any) -> None:
    script(tmp_path, TRAINING)
    run = started(*RUN, "train.py", "sleep", "0")
    resting(tmp_path)
    watching = subprocess.Popen(
        [*TDIAG, "attach", str(run.pid), "--time-budget", "600"], cwd=tmp_path,
        stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert watching.stderr is not None
    while "timing clean steps" not in watching.stderr.readline():
        assert watching.poll() is None
    watching.send_signal(signal.SIGINT)
    said = watching.communicate(timeout=60)[1]
    assert watching.returncode == 0, said
    assert "the watching was interrupted" in said
    assert (latest(tmp_path) / wire.CONTROL / wire.OVER).exists()
    assert run.end()[1] == 7


def run_of(folder: Path, pid: int, *events: str) -> Path:
    own = folder / "own"
    for name in (wire.CONTROL, wire.EVENTS):
        (own / name).mkdir(parents=True)
    (own / wire.events_file(pid)).write_text("".join(f"{line}\n" for line in events))
    return own


STEPS = '{"kind":"steps","i":0,"n":9,"s":1,"t":2,"w":"baseline","m":[]}'
FINISH = '{"kind":"finish","t":3,"why":"complete"}'


def test_nobody_is_asked_who_cannot_answer(tmp_path: Path) -> None:
    assert "is not here" in visiting.unready(tmp_path / "none", 7)
    own = run_of(tmp_path, 7, STEPS)
    assert "own windows still run" in visiting.unready(own, 7)
    assert "no step of this process" in visiting.unready(own, 8)
    with (own / wire.events_file(7)).open("a") as file:
        file.write(FINISH + "\n")
    assert visiting.unready(own, 7) == ""


def test_no_answer_withdraws_the_request(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(visiting, "ANSWER_WITHIN_S", 0.2)
    own = run_of(tmp_path, 7, STEPS, FINISH)
    assert "did not answer" in visiting.begin(own, tmp_path / "new", 7, lambda: True)
    assert [file.name for file in (own / wire.CONTROL).iterdir()] == []


def answering(own: Path, begin: Any) -> visits.Visits:
    return visits.Visits(str(own), begin)


@pytest.mark.parametrize("compiled", [0, 3])
def test_the_probe_answers_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compiled: int
) -> None:
    monkeypatch.setattr(dynamo, "compiled_frames", lambda: compiled)
    own = run_of(tmp_path, os.getpid(), STEPS, FINISH)
    began: list[str] = []
    probe = answering(own, lambda folder, over: began.append(folder))
    assert probe.asked() is None

    def answer() -> None:
        wait_for(lambda: probe.asked())
        asked = probe.asked()
        assert asked is not None
        assert probe.receive(asked, lambda steps: None) == (not compiled)
        assert probe.asked() is None

    thread = threading.Thread(target=answer)
    thread.start()
    said = visiting.begin(own, tmp_path / "new", os.getpid(), lambda: True)
    thread.join()
    assert began == ([] if compiled else [str(tmp_path / "new")])
    assert said == (visits.COMPILED if compiled else "")


def test_a_pass_that_cannot_begin_is_refused_with_the_reason(tmp_path: Path) -> None:
    own = run_of(tmp_path, os.getpid(), STEPS, FINISH)
    (own / wire.CONTROL / wire.VISIT_ASKED).write_text(json.dumps({"run_dir": "/nowhere"}))

    def fail(folder: str, over: Any) -> None:
        raise FileNotFoundError(folder)

    probe = answering(own, fail)
    asked = probe.asked()
    assert asked is not None and not probe.receive(asked, lambda steps: None)
    said = (own / wire.CONTROL / wire.visit_answer(os.getpid())).read_text()
    assert said == "refused: FileNotFoundError: /nowhere"


def test_attach_says_why_the_probe_was_not_asked(tmp_path: Path, started: Any) -> None:
    """A process whose run directory is gone is watched from outside."""
    from tests.launch.test_attach import holder

    target = started(
        sys.executable, holder(tmp_path), env={wire.RUN_VARIABLE: str(tmp_path / "gone")}
    )
    done = tdiag("attach", str(target.pid), "--time-budget", "8", "--json", cwd=tmp_path)
    texts = [note["text"] for note in json.loads(done.stdout)["notes"]]
    assert any("is not here; it was watched from outside" in text for text in texts), texts
    assert target.end() == ("done\n", 7)
