"""A large file is decoded in several processes, to the same columns."""

from __future__ import annotations

import gzip
import sys
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pytest

from tdiag.trace import Trace, inflate, parallel, read_trace
from tests.trace.making import op, trace_of, write
from tests.trace.test_reader_formats import assert_same

EVENTS = [op(f"op{i % 7}", i, 1, **{"External id": i}) for i in range(3000)]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Trace:
    """What one process reads; from then on, files are worth several, of three cores."""
    whole = trace_of(tmp_path, EVENTS)
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
    monkeypatch.setattr("sys.executable", "/bin/false")
    assert_same(trace_of(tmp_path, EVENTS), here)


def test_a_child_that_answers_something_else_is_given_no_more(
    here: Trace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It says that it is there, then three bytes that are no columns, and stays."""
    answer = "sys.stdout.buffer.write(b'!' + (3).to_bytes(8, 'little') + b'xyz')"
    code = f"import sys, time; {answer}; sys.stdout.flush(); time.sleep(600)"
    monkeypatch.setattr(parallel, "cores", lambda: 2)
    monkeypatch.setattr(parallel, "program", lambda module: [sys.executable, "-c", code])
    monkeypatch.setattr(parallel, "SimpleQueue", PatientAtFirst)
    assert_same(trace_of(tmp_path, EVENTS), here)
