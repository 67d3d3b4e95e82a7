"""A large file is decoded in several processes, to the same columns."""

from __future__ import annotations

import gzip
import inspect
import subprocess
import sys
import threading
import time
from pathlib import Path
from queue import SimpleQueue
from textwrap import dedent
from typing import IO, Any

import psutil
import pytest

from tdiag.trace import Trace, child, inflate, parallel, read_trace
from tests.trace.making import op, trace_of, write
from tests.trace.test_reader_formats import assert_same

EVENTS = [op(f"op{i % 7}", i, 1, **{"External id": i}) for i in range(3000)]


@pytest.fixture(params=[True, False], ids=["forked", "started"])
def here(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Trace:
    """What one process reads; from then on, files are worth several, of three cores."""
    whole = trace_of(tmp_path, EVENTS)
    monkeypatch.setattr(child, "FORKS", request.param)
    monkeypatch.setattr(inflate, "BLOCK_BYTES", 20_000)
    monkeypatch.setattr("tdiag.trace.reader.pays_off", lambda path: True)
    monkeypatch.setattr(parallel, "cores", lambda: 3)
    return whole


class Patient(SimpleQueue[Any]):
    """Every block waits until a child is there for it."""

    def get_nowait(self) -> Any:
        return self.get(timeout=60)


class PatientAtFirst(SimpleQueue[Any]):
    """The first block waits until a child is there for it."""

    waited = False

    def get_nowait(self) -> Any:
        if self.waited:
            return super().get_nowait()
        self.waited = True
        return self.get(timeout=60)


@pytest.mark.parametrize("name", ["t.json", "a path, of 'some' length.json.gz"])
def test_child_processes_decode_the_same(
    name: str, here: Trace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Plain files they read themselves, packed ones are sent to them."""
    monkeypatch.setattr(parallel, "SimpleQueue", Patient)
    monkeypatch.setattr(parallel, "decode", None)  # this process must not
    path = write(tmp_path / name, EVENTS)
    if path.suffix == ".gz":
        path.write_bytes(gzip.compress(path.read_bytes()))
    assert_same(read_trace(path), here)


def test_what_a_child_finds_broken_is_recovered_here(
    here: Trace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parallel, "SimpleQueue", Patient)
    path = write(tmp_path / "t.json", EVENTS)
    path.write_bytes(path.read_bytes().replace(b'"op3", ', b'"op"3", ', 1))
    found = read_trace(path)
    assert found.damage.repaired == 1
    assert len(found) == len(here)


def test_without_children_this_process_decodes(
    here: Trace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They end before they are there."""
    monkeypatch.setattr(child, "serve", None)
    monkeypatch.setattr("sys.executable", "/bin/false")
    assert_same(trace_of(tmp_path, EVENTS), here)


def test_a_child_that_answers_something_else_is_given_no_more(
    here: Trace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It says that it is there, then three bytes that are no columns, and stays."""

    def babble(source: IO[bytes], sink: IO[bytes], path: str | None) -> None:
        sink.write(b"!" + (3).to_bytes(8, "little") + b"xyz")
        sink.flush()
        time.sleep(600)

    code = f"import sys, time\n{dedent(inspect.getsource(babble))}"
    code = f"from typing import IO\n{code}\nbabble(sys.stdin.buffer, sys.stdout.buffer, None)"
    monkeypatch.setattr(parallel, "cores", lambda: 2)
    monkeypatch.setattr(child, "serve", babble)
    monkeypatch.setattr(child, "program", lambda module: [sys.executable, "-c", code])
    monkeypatch.setattr(parallel, "SimpleQueue", PatientAtFirst)
    assert_same(trace_of(tmp_path, EVENTS), here)


def test_children_end_with_whoever_reads(tmp_path: Path) -> None:
    """However that ends: here it is killed while its children wait for more."""
    code = (
        "import os, sys, time\n"
        "from tdiag.trace import child\n"
        "pids = [child.start(None).pid for _ in range(3)]\n"
        "print(*pids, flush=True)\n"
        "time.sleep(600)\n"
    )
    reader = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert reader.stdout is not None
    children = [psutil.Process(int(pid)) for pid in reader.stdout.readline().split()]
    reader.kill()
    reader.communicate()
    assert len(children) == 3
    assert psutil.wait_procs(children, timeout=60)[1] == []


def test_a_fork_beside_other_threads_says_nothing(
    here: Trace, tmp_path: Path, recwarn: pytest.WarningsRecorder
) -> None:
    """A progress display runs in one."""
    stop = threading.Event()
    thread = threading.Thread(target=stop.wait)
    thread.start()
    try:
        assert_same(trace_of(tmp_path, EVENTS), here)
    finally:
        stop.set()
        thread.join()
    assert not recwarn.list
