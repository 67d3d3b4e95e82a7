"""Many traces read elsewhere give the report that reading them one after another gives."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest

from tdiag.cli.analyze import _behind, _here, _read
from tdiag.diagnose import diagnose
from tdiag.errors import RunError, UsageError
from tdiag.evidence.from_trace import trace_files
from tdiag.evidence.from_trace.executors import PROCESSES, Found, read_alone, read_many
from tdiag.evidence.from_trace.ranks_of_traces import merge_ranks
from tdiag.evidence.from_trace.trace_files import TracedFile, read_file
from tdiag.report.json import encode
from tests.trace.making import write
from tests.trace.test_analyze import steps


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    """Of five ranks; each waits another time for data."""
    found = []
    for rank in range(5):
        about = {"rank": rank, "world_size": 5}
        path = tmp_path / f"rank{rank}.json"
        found.append(write(path, steps(500.0 * rank), distributedInfo=about))
    return found


def report(found: Sequence[Found]) -> str:
    read = [one for one in found if isinstance(one, TracedFile)]
    evidence = merge_ranks({one.rank or 0: one.evidence for one in read})
    return encode(diagnose(evidence))


def serial(files: list[Path]) -> str:
    return report([read_file(path) for path in files])


def test_processes_give_the_same_bytes_and_count_what_is_done(files: list[Path]) -> None:
    said: list[tuple[int, int]] = []
    found = read_many(files, PROCESSES, lambda done, size: said.append((done, size)))
    assert [one.path for one in found if isinstance(one, TracedFile)] == files
    assert report(found) == serial(files)
    assert said == [(number, 5) for number in range(1, 6)]


def test_a_reader_that_is_killed_is_started_again(
    files: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed = tmp_path / "killed"
    dies = f'mkdir "{killed}" 2>&- && kill -9 $$; exec "$@"'
    usual = trace_files.program
    monkeypatch.setattr(trace_files, "program", lambda name: ["sh", "-c", dies, "sh", *usual(name)])
    assert report(read_many(files, PROCESSES)) == serial(files)
    assert killed.exists()


@pytest.mark.parametrize("executor", ["spark://x", "threads", ""])
def test_another_executor_is_refused(executor: str, files: list[Path]) -> None:
    with pytest.raises(UsageError, match="is not known") as caught:
        read_many(files, executor)
    assert "processes, dask://…, ray://" in caught.value.hint


@pytest.mark.parametrize(("module", "extra"), [("distributed", "dask"), ("ray", "ray")])
def test_without_the_library_it_says_what_to_install(
    module: str, extra: str, files: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(UsageError, match=f"{extra.title()} cannot be used") as caught:
        read_many(files, f"{extra}://localhost:1")
    assert f"tdiag[{extra}]" in caught.value.hint


def dies_once(path: Path, mark: Path) -> Found:
    """Takes its worker with it, the first time that it is asked for the third file."""
    if path.name == "rank2.json" and not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return read_alone(path)


@pytest.fixture
def dask() -> Iterator[str]:
    distributed = pytest.importorskip("distributed")
    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, dashboard_address=None
    ) as made:
        yield made.scheduler_address.replace("tcp://", "dask://")


@pytest.fixture
def ray(monkeypatch: pytest.MonkeyPatch) -> str:
    """A cluster of this machine's, of two workers."""
    library = pytest.importorskip("ray")
    usual = library.init
    monkeypatch.setattr(library, "init", lambda **given: usual(**given, num_cpus=2))
    return "ray://"


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("executor", [
    pytest.param("dask", marks=pytest.mark.training),
    pytest.param("ray", marks=pytest.mark.slow),  # some 20 s to start
])  # fmt: skip
def test_two_workers_give_the_same_bytes_though_one_is_killed(
    executor: str, files: list[Path], tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    where = request.getfixturevalue(executor)
    broken = tmp_path / "rank9.json"
    broken.write_text("hello")
    mark = tmp_path / "killed"
    found = read_many([*files, broken], where, read=partial(dies_once, mark=mark))
    assert mark.exists()
    assert report(found) == serial(files)
    assert isinstance(found[5], RunError) and "rank9.json" in found[5].message


@pytest.mark.training
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("named", ["folder", "files"])
def test_workers_copy_what_lies_behind_a_url(
    named: str, files: list[Path], tmp_path: Path, dask: str
) -> None:
    urls = [f"file://{tmp_path}"] if named == "folder" else [f"file://{file}" for file in files]
    with ExitStack() as stack:
        paths, there = _here(urls, dask, stack)
        assert len(there) == 5 and not any(path.stat().st_size for path in there)
        found = json.loads(encode(_read((paths, there), dask).diagnosis))
    expected = json.loads(serial(files))
    for part in ("verdict", "budget", "findings", "ranks"):
        assert found[part] == expected[part]


def test_a_url_behind_which_nothing_lies_is_one_message(tmp_path: Path) -> None:
    with ExitStack() as stack, pytest.raises(RunError, match="contains nothing that can be read"):
        _here([f"file://{tmp_path}"], "dask://", stack)
    file = write(tmp_path / "rank0.json", steps(0.0))
    with ExitStack() as stack:
        _, there = _here([f"file://{tmp_path}"], "dask://", stack)
        file.unlink()
        gone = _behind(next(iter(there)), there)
    assert isinstance(gone, RunError)


@pytest.mark.training
@pytest.mark.filterwarnings("default")
def test_a_scheduler_that_does_not_answer_is_one_message(
    files: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("distributed")
    monkeypatch.setattr("tdiag.evidence.from_trace.executors.CONNECT_WITHIN", "1s")
    with pytest.raises(UsageError, match=r"no Dask scheduler answers at 127\.0\.0\.1:9"):
        read_many(files, "dask://127.0.0.1:9")
