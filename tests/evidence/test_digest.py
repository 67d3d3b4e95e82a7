"""The digest of a job's ranks: the same facts, and no records read."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tdiag.diagnose import diagnose
from tdiag.evidence.from_run import distil, event_files, load_run
from tdiag.evidence.from_run.digest import key_of, read_digest
from tdiag.probe.wire import DIGEST, EventsFile

from .making import MS
from .test_late_rank import append, fetches
from .test_machines import two_machines
from .test_ranks_of_run import job, ranks_of, reduced, step

JOBS = {
    "late": (step(data=4, backward=36), step(data=30, backward=10), step(data=4, backward=36)),
    "balanced": (reduced(10, 4, 6), reduced(10, 6, 4), reduced(10, 5, 5)),
    "apart": (step(), step(forward=80), step()),  # one that does not step with the lead
}


def counted(monkeypatch: pytest.MonkeyPatch) -> list[EventsFile]:
    """The events files that are read from now on."""
    read: list[EventsFile] = []
    original = event_files.read_process

    def reading(file: EventsFile) -> event_files.Process:
        read.append(file)
        return original(file)

    monkeypatch.setattr(event_files, "read_process", reading)
    return read


@pytest.mark.parametrize("name", JOBS)
def test_the_digest_gives_what_the_records_give_without_reading_them(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job(tmp_path, *JOBS[name])
    for number in range(3):
        append(tmp_path, 100 + number, *fetches([100 + 50 * (number == 1), 120 + number]))
    whole = load_run(tmp_path)
    assert (tmp_path / DIGEST).exists()
    read = counted(monkeypatch)
    again = load_run(tmp_path)
    assert again == whole
    judged = {"100", "101"} if name == "late" else {"100"}
    assert {file.name for file in read} == judged, "the lead, and the rank the others wait for"
    assert diagnose(again) == diagnose(whole)


def test_a_digest_of_other_events_is_not_used(tmp_path: Path) -> None:
    job(tmp_path, *JOBS["late"])
    before = (tmp_path / DIGEST).read_bytes()
    append(tmp_path, 101, {"kind": "dispatch", "op_ns": 1.0, "grad_op_ns": 2.0})
    assert ranks_of(load_run(tmp_path)).slowest == 1
    assert (tmp_path / DIGEST).read_bytes() != before
    (tmp_path / DIGEST).write_bytes(b"\xc1 no digest")
    assert ranks_of(load_run(tmp_path)).slowest == 1


def test_events_that_grow_while_they_are_read_void_the_digest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The job still runs."""
    original = distil.read_events

    def growing(part: Path) -> list[event_files.Process]:
        found = original(part)
        append(part, 101, {"kind": "dispatch", "op_ns": 1.0, "grad_op_ns": 2.0})
        return found

    monkeypatch.setattr(distil, "read_events", growing)
    job(tmp_path, *JOBS["late"])
    assert (tmp_path / DIGEST).exists()
    assert read_digest(tmp_path, key_of(tmp_path)) == {}


@pytest.mark.parametrize("wall", [0, 3_000 * MS])
def test_of_another_machine_only_the_late_rank_is_read(
    wall: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its digest has its own clock and process numbers."""
    whole = two_machines(tmp_path, wall=wall)
    assert (tmp_path / "nodes" / "b" / DIGEST).exists()
    read = counted(monkeypatch)
    assert load_run(tmp_path) == whole
    assert len(read) == 2


def test_a_copied_run_keeps_its_digest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An upload to a bucket changes the files' times."""
    job(tmp_path / "run", *JOBS["late"])
    shutil.copytree(tmp_path / "run", tmp_path / "copy", copy_function=shutil.copyfile)
    read = counted(monkeypatch)
    load_run(tmp_path / "copy")
    assert {file.name for file in read} == {"100", "101"}


def test_one_process_alone_leaves_no_digest(tmp_path: Path) -> None:
    job(tmp_path, step())
    assert not (tmp_path / DIGEST).exists()
