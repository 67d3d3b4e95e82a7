"""A whole run in this process: what is recorded, and that faults of ours cost only the watching."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tdiag.launch import permissions, session
from tdiag.launch.session import RunOptions, launch
from tdiag.launch.target import Target
from tdiag.sample import pyspy

from .harness import script

QUIET = RunOptions(quiet=True)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_record_tells_what_ran_and_how_it_ended(folder: Path) -> None:
    outcome = launch(Target("script", script(folder, "import sys; sys.exit(3)"), ("a",)), QUIET)
    record = json.loads((outcome.run_dir / "run.json").read_text())
    assert outcome.code == record["exit_code"] == 3
    assert record["command"][1:] == ["train.py", "a"] and record["cwd"] == str(folder)
    assert record["end_unix_ns"] > record["start_unix_ns"] > 0
    assert record["signal"] is None and record["schema"] == 1
    assert record["torch_version"].startswith("2.") and record["options"]["quiet"] is True


@pytest.mark.parametrize("stopped", [True, False])
def test_a_crash_after_tdiag_had_stopped_the_training_is_no_failure(
    stopped: bool, folder: Path
) -> None:
    """Python may crash while it shuts down beside threads that still run (torchdata's nodes)."""
    record = 'events.write("stop", t=events.now)\n' if stopped else ""
    name = script(folder, f"events.step()\n{record}os.abort()\n", training=True)
    outcome = launch(Target("script", name), QUIET)
    assert outcome.code == (0 if stopped else 134)
    assert any("SIGABRT" in note for note in outcome.notes)
    assert any("while it shut down" in note for note in outcome.notes) is stopped


def test_before_it_ends_the_record_has_no_end(folder: Path) -> None:
    name = script(folder, """
        import os, shutil
        shutil.copy(os.environ['TDIAG_RUN'] + '/run.json', 'then.json')
        """)  # fmt: skip
    launch(Target("script", name), QUIET)
    then = json.loads(Path("then.json").read_text())
    assert then["exit_code"] is None and then["end_unix_ns"] is None


@pytest.mark.parametrize("broken", ["sample", "__init__"])
def test_a_fault_of_a_sampler_does_not_touch_the_program(
    broken: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("ours")

    monkeypatch.setattr(session.SystemSampler, broken, fail)
    name = script(folder, "import time; time.sleep(0.3); print('done', file=open('end', 'w'))")
    outcome = launch(Target("script", name), QUIET)
    assert outcome.code == 0 and Path("end").read_text() == "done\n"
    assert "tdiag stopped watching: RuntimeError: ours" in outcome.notes


def test_a_disk_that_fills_up_meanwhile_is_a_note(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = script(folder, """
        import os
        os.rename(os.environ['TDIAG_RUN'], 'gone')  # at once: a sampler may be adding a file
        """)  # fmt: skip
    outcome = launch(Target("script", name), QUIET)
    assert outcome.code == 0
    assert any("cannot write the run directory" in note for note in outcome.notes)


def test_a_process_that_could_not_be_watched_is_named(folder: Path) -> None:
    name = script(folder, """
        import os
        os.remove(os.environ['TDIAG_RUN'] + '/config.json')
        import torch
        """)  # fmt: skip
    outcome = launch(Target("script", name), QUIET)
    assert outcome.code == 0
    assert any("could not be watched: FileNotFoundError" in note for note in outcome.notes)


TRAINING = """
import time, torch
model = torch.nn.Linear(4, 1)
until = time.monotonic() + 60
while time.monotonic() < until:
    loss = model(torch.ones(2, 4)).sum()
    model.zero_grad()
    loss.backward()
    with torch.no_grad():  # by hand: an optimizer imports what takes longer than torch itself
        for weight in model.parameters():
            weight -= 0.01 * weight.grad
    time.sleep(0.002)
"""


def refusing(folder: Path) -> str:
    path = folder / "py-spy"
    path.write_text("#!/bin/sh\necho 'Error: Permission denied (os error 13)' >&2; exit 1\n")
    path.chmod(0o755)
    return str(path)


def test_where_attaching_is_refused_the_run_goes_on_with_the_sampler_inside(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pyspy, "find_program", lambda: refusing(folder))
    monkeypatch.setattr(session, "calibrate", lambda run_dir: None)  # imports torch once more
    options = RunOptions(quiet=True, profiling=True, steps=400)
    outcome = launch(Target("script", script(folder, TRAINING)), options)
    assert outcome.code == 0
    (stacks,) = outcome.run_dir.glob("stacks-*.speedscope.json")
    assert json.loads(stacks.read_text())["exporter"] == "tdiag in-process"
    (events,) = outcome.run_dir.glob("events/*.jsonl")
    why = [json.loads(x)["why"] for x in events.read_text().splitlines() if '"sampler"' in x]
    assert why and "--cap-add SYS_PTRACE" in why[0]


def test_doctor_says_what_is_lacking_and_what_to_do(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pyspy, "find_program", lambda: refusing(folder))
    monkeypatch.setattr(permissions, "version", lambda package: None)
    found = {check.name: check for check in permissions.checks(None)}
    assert found["torch"].ok
    spy = found["py-spy attach"]
    assert spy.ok is False and "without workers" in spy.cost and "SYS_PTRACE" in spy.allow
    assert found["strace"].ok is None and "--syscalls" in found["strace"].found
    assert found["TensorBoard plugin"].allow == "pip install torch-tb-profiler tensorboard"


def test_doctor_finds_no_place_to_write(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gone = folder / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    found = {check.name: check for check in permissions.checks("/nowhere/python")}
    assert found["torch"].ok is False and found["torch"].vital
    assert found["run directory"].ok is False and found["run directory"].vital
