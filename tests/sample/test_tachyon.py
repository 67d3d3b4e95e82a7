"""Python 3.15's own sampler takes py-spy's place where that is missing or cannot read the Python.

The set-up has no Python 3.15. Here a copy of this Python bears its name, and ``profiling.sampling``
in it is a stand-in with the same interface that asks py-spy for each stack. The real one was tried
by hand (CONTRIBUTING, "Other versions").
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tdiag.evidence.from_run.stack_files import read_stacks_file, sampler_of, thread_of
from tdiag.launch import permissions
from tdiag.probe.wire import PY_SPY, TACHYON
from tdiag.sample import pyspy, tachyon
from tdiag.sample.pyspy import PySpy
from tests.launch.harness import wait_for
from tests.sample.test_pyspy import PERMISSION, answer, ask, busy_process, fake

REMOTE = """
import contextlib, pathlib

def get_child_pids(pid, recursive=True):
    found = []
    for file in pathlib.Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            before, _, after = file.read_text().rpartition(")")
            if after.split()[1] == str(pid):
                found.append(int(before.split()[0]))
    return found
"""
SAMPLE = f"""
import json, subprocess
from types import SimpleNamespace as Some

class SampleProfiler:
    def __init__(self, pid, sample_interval_usec, all_threads):
        assert all_threads
        self.pid = pid

    def dump_stack(self):
        done = subprocess.run([{pyspy.find_program()!r}, "dump", "--json", "--full-filenames",
                               "--pid", str(self.pid)], capture_output=True)
        if done.returncode:
            raise RuntimeError("Failed to find the PyRuntime section in process")
        threads = [
            Some(thread_id=t["os_thread_id"] or t["thread_id"], frame_info=[
                Some(funcname=f["name"], filename=f["filename"],
                     location=Some(lineno=f["line"])) for f in t["frames"]])
            for t in json.loads(done.stdout)
        ]
        return [Some(threads=threads)]
"""


@pytest.fixture
def python(tmp_path: Path) -> Path:
    """A Python by the name of 3.15, with the stand-in."""
    home = tmp_path / "new"
    (home / "bin").mkdir(parents=True)
    real = Path(sys.executable).resolve()
    shutil.copy(real, home / "bin" / "python3.15")
    (home / "pyvenv.cfg").write_text(f"home = {real.parent}\n")
    packages = home / f"lib/python3.{sys.version_info.minor}/site-packages"
    sampling = packages / "profiling" / "sampling"
    sampling.mkdir(parents=True)
    (packages / "_remote_debugging.py").write_text(REMOTE)
    (sampling / "sample.py").write_text(SAMPLE)
    return home / "bin" / "python3.15"


@pytest.fixture
def busy(tmp_path: Path, python: Path) -> Iterator[subprocess.Popen[bytes]]:
    yield from busy_process(tmp_path, str(python))


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    (tmp_path / "control").mkdir()
    return tmp_path


@pytest.fixture(params=["missing", "of older Pythons only"])
def no_py_spy(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    older = fake(tmp_path, "echo 'Error: Failed to find python version' >&2; exit 1")
    found = None if request.param == "missing" else older
    monkeypatch.setattr(pyspy, "find_program", lambda: found)


def test_versions() -> None:
    assert tachyon.has_sampler("3.15.2") and tachyon.has_sampler("python3.16")
    for version in ("3.14.10", "python3.9", "python3", "", "None"):
        assert not tachyon.has_sampler(version)


@pytest.mark.usefixtures("no_py_spy")
def test_it_samples_a_process_and_its_children_until_stopped(
    run_dir: Path, busy: subprocess.Popen[bytes]
) -> None:
    sampler = PySpy(run_dir)
    assert answer(sampler, ask(run_dir, busy.pid)) == "attached\n"
    final = run_dir / f"stacks-{busy.pid}.speedscope.json"
    assert not final.exists()
    time.sleep(2)  # the stand-in takes some time for each stack
    (run_dir / "control" / f"sample-{busy.pid}-1.stop").touch()
    wait_for(lambda: sampler.tick() or final.exists())
    file = read_stacks_file(final)
    assert file is not None and sampler_of(file) == TACHYON != PY_SPY
    threads = [thread_of(profile.name) for profile in file.profiles]
    assert len(threads) == 2 and (busy.pid, busy.pid) in threads
    assert all(len(p.samples) > 3 for p in file.profiles)
    of_main = next(p for p in file.profiles if thread_of(p.name)[0] == busy.pid)
    names = [file.shared.frames[i].name for i in of_main.samples[0]]
    assert names == ["<module>", "work"]
    assert busy.poll() is None


@pytest.mark.usefixtures("no_py_spy")
def test_a_program_that_ends_meanwhile_leaves_its_stacks(
    run_dir: Path, busy: subprocess.Popen[bytes]
) -> None:
    sampler = PySpy(run_dir)
    answer(sampler, ask(run_dir, busy.pid))
    time.sleep(1)
    busy.kill()
    wait_for(lambda: sampler.tick() or busy.poll() is not None)
    sampler.close()
    assert json.loads((run_dir / f"stacks-{busy.pid}.speedscope.json").read_text())["profiles"]


@pytest.mark.usefixtures("no_py_spy")
def test_where_a_process_stands_is_read_as_well(busy: subprocess.Popen[bytes]) -> None:
    assert [frame.name for frame in pyspy.dump(busy.pid)] == ["work", "<module>"]
    assert pyspy.why_refused(busy.pid) == ""


def test_if_both_refuse_py_spys_reason_is_told(
    run_dir: Path, python: Path, busy: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        pyspy, "find_program", lambda: fake(run_dir, f"echo '{PERMISSION}'; exit 1")
    )
    stand_in = next(python.parents[1].rglob("sample.py"))
    stand_in.write_text(SAMPLE.replace("done.returncode", "True"))
    state = answer(PySpy(run_dir), ask(run_dir, busy.pid))
    assert state.startswith("refused: the system does not let py-spy read the process")
    assert pyspy.why_refused(busy.pid).startswith("the system does not let py-spy")
    assert pyspy.dump(busy.pid) == []


def test_doctor_knows_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pyspy, "find_program", lambda: None)
    assert permissions._py_spy("3.14.2").ok is False
    check = permissions._py_spy("3.15.2")
    assert check.ok is None and "a sampler of its own" in check.found
    assert pyspy.can_sample("3.15.0") and not pyspy.can_sample("3.14.2")
