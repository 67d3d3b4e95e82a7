"""The trial of the storage: after a run that read from it, the same files there and beside it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tdiag.evidence.feeding import Storage
from tdiag.evidence.from_run import load_run
from tdiag.sample import storage
from tests.evidence.making import Run, plain


@pytest.fixture
def data(tmp_path: Path) -> Path:
    folder = tmp_path / "data"
    folder.mkdir()
    for number in range(60):
        (folder / f"{number}.bin").write_bytes(bytes([number]) * (1000 + number))
    (folder / "below").mkdir()
    (folder / "empty").touch()
    return folder


def ran(folder: Path, data: Path, **fetch: Any) -> Path:
    run = Run(folder)
    run.steps(30, plain)
    run.add("fetch", t=run.now, wall=5, folders=[[str(data), 8], ["/elsewhere", 2]], **fetch)
    return run.write(torn='{"kind": "fetch", "folders": [["/x')


def test_the_same_files_are_read_there_and_beside_it(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(storage, "_other_disk", lambda *_: True)
    before = {file.name: file.read_bytes() for file in data.iterdir() if file.is_file()}
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    found = storage.compare(data, [scratch])
    assert found is not None
    assert found["files"] == storage.FILES
    assert 1000 * storage.FILES <= found["bytes"] <= 1060 * storage.FILES
    assert found["ns"] > 0 and found["local_ns"] > 0
    assert found["local_free_bytes"] > 0
    assert list(scratch.iterdir()) == []
    assert {f.name: f.read_bytes() for f in data.iterdir() if f.is_file()} == before


def test_on_the_same_disk_there_is_nothing_to_compare(data: Path, tmp_path: Path) -> None:
    found = storage.compare(data, [tmp_path])
    assert found is not None
    assert set(found) == {"folder", "filesystem"}


def test_a_run_that_read_leaves_its_trial(data: Path, tmp_path: Path) -> None:
    run_dir = ran(tmp_path / "run", data, read=4096)
    storage.try_storage(run_dir)
    found = load_run(run_dir).get(Storage)
    assert found is not None
    assert (found.folder, found.ns) == (str(data), None)


@pytest.mark.parametrize(("remote", "tried"), [(False, False), (True, True)])
def test_files_from_the_cache_are_no_reason_unless_they_come_over_a_network(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, remote: bool, tried: bool
) -> None:
    monkeypatch.setattr(storage, "filesystem", lambda _: "nfs4" if remote else "ext4")
    run_dir = ran(tmp_path / "run", data, read=0)
    storage.try_storage(run_dir)
    assert (run_dir / "storage.json").exists() is tried


def test_files_that_are_gone_are_no_fault(tmp_path: Path) -> None:
    run_dir = ran(tmp_path / "run", tmp_path / "gone", read=4096)
    storage.try_storage(run_dir)
    assert not (run_dir / "storage.json").exists()
    (run_dir / "storage.json").write_text("{")
    assert load_run(run_dir).get(Storage) is None


def test_the_file_system_is_named() -> None:
    assert storage.filesystem(Path("/proc/self")) == "proc"
    assert json.dumps(storage.filesystem(Path("/nowhere/at/all")))
