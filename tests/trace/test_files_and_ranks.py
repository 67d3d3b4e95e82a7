"""Paths become traces, traces become ranks, and the rank that the others wait for is named."""

from __future__ import annotations

import gzip
import shutil
from pathlib import Path
from typing import Any

import pytest

from tdiag.cli.analyze import read_ranks
from tdiag.errors import RunError, UsageError
from tdiag.evidence.device import DeviceTime
from tdiag.evidence.from_trace.ranks_of_traces import merge_ranks
from tdiag.evidence.from_trace.trace_files import (
    TracedFile,
    find_traces,
    read_file,
    read_files,
    unrelated,
)
from tdiag.evidence.machine import Environment
from tdiag.evidence.ranks import Communication, Ranks
from tdiag.evidence.steps import TracedSteps
from tdiag.evidence.store import Evidence
from tests.trace.making import Event, kernel, op, step, write

MS = 1_000_000


def test_a_tensorboard_folder_gives_the_latest_trace_of_each_worker(tmp_path: Path) -> None:
    names = [
        "host_1.100.pt.trace.json", "host_1.200.pt.trace.json", "host_2.150.pt.trace.json.gz",
        "events.out.tfevents.1", "notes.json",
    ]  # fmt: skip
    for name in names:
        (tmp_path / name).touch()
    found = find_traces([tmp_path])
    assert [path.name for path in found] == [names[1], names[2]]


def test_other_folders_give_every_json_file(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    for name in ("a/rank0.json", "rank1.json.gz", "readme.md"):
        (tmp_path / name).touch()
    assert {path.name for path in find_traces([tmp_path])} == {"rank0.json", "rank1.json.gz"}


def test_an_empty_folder_is_said_to_be_empty(tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"no \.json"):
        find_traces([tmp_path])


def test_several_files_are_read_each_in_its_process(tmp_path: Path) -> None:
    a = write(tmp_path / "a.json", [step(1, 0, 10), kernel("k", 1, 2)], distributedInfo={"rank": 3})
    b = write(tmp_path / "rank_5.json", [step(1, 0, 20), op("x", 1, 2)])
    packed = tmp_path / "worker7.x.json.gz"
    with packed.open("wb") as file, b.open("rb") as plain, gzip.open(file, "wb") as out:
        shutil.copyfileobj(plain, out)
    broken = tmp_path / "c.json"
    broken.write_text("hello")
    results = read_files([a, b, packed, broken])
    read = [found for found in results if isinstance(found, TracedFile)]
    assert [(found.path, found.rank) for found in read] == [(a, 3), (b, 5), (packed, 7)]
    steps = [found.evidence.get(TracedSteps) for found in read]
    assert [s.mean_ns if s else None for s in steps] == [10_000, 20_000, 20_000]
    assert isinstance(results[3], RunError)
    assert "c.json" in results[3].message
    assert results[3].hint


def test_only_devices_that_worked_are_named(tmp_path: Path) -> None:
    devices = [{"id": 0, "name": "A100"}, {"id": 1, "name": "A100"}]
    path = write(tmp_path / "a.json", [kernel("k", 1, 2)], deviceProperties=devices)
    idle = write(tmp_path / "b.json", [op("k", 1, 2)], deviceProperties=devices)
    found, without = read_files([path])[0], read_files([idle])[0]
    assert isinstance(found, TracedFile)
    assert isinstance(without, TracedFile)
    about, nothing = found.evidence.get(Environment), without.evidence.get(Environment)
    assert about is not None
    assert nothing is not None
    assert (about.device, about.device_count) == ("A100", 1)
    assert (nothing.device, nothing.device_count) == ("no device traced", 0)


def rank(step_ms: float, communication_ms: float | None) -> Evidence:
    evidence = Evidence().add(
        DeviceTime(
            step_ns=step_ms * MS, components_ns={"compute": step_ms * MS}, busy_frac=1.0,
            kernels_per_step=1, mean_kernel_ns=1, launch_starved_ns=0, streams=1,
        )
    )  # fmt: skip
    if communication_ms is not None:
        total = communication_ms * MS
        evidence.add(Communication(total_ns=total, exposed_ns=total, count=1))
    return evidence


def test_the_straggler_is_the_rank_that_communicates_least() -> None:
    merged = merge_ranks({0: rank(100, 60), 1: rank(100, 50), 2: rank(100, 5), 3: rank(100, 55)})
    ranks = merged.get(Ranks)
    assert ranks is not None
    assert ranks.slowest == 2
    assert ranks.waited_ns == (55 - 5) * MS
    assert [r.rank for r in ranks.ranks] == [0, 1, 2, 3]
    communication = merged.get(Communication)
    assert communication is not None
    assert communication.total_ns == 5 * MS, "the evidence shown is the straggler's own"


def test_without_measured_communication_nobody_is_waited_for() -> None:
    merged = merge_ranks({1: rank(100, None), 0: rank(90, 10)})
    ranks = merged.get(Ranks)
    assert ranks is not None
    assert (ranks.slowest, ranks.waited_ns) == (None, None)
    assert [r.communication_ns for r in ranks.ranks] == [10 * MS, None]


def test_one_rank_alone_has_no_ranks() -> None:
    assert merge_ranks({0: rank(100, 60)}).get(Ranks) is None


@pytest.mark.parametrize(
    "events", [[], [{"ph": "X", "cat": "toplevel", "name": "RunTask", "ts": 1, "dur": 2}]]
)
def test_a_trace_of_another_program_is_refused(tmp_path: Path, events: list[Event]) -> None:
    path = write(tmp_path / "chrome.json", events)
    with pytest.raises(RunError, match=r"chrome\.json holds no torch\.profiler events"):
        read_file(path)


def traced(
    folder: Path, name: str, *kernels: str, device: str = "A100", **distributed: int
) -> TracedFile:
    events = [step(1, 0, 1000), *(kernel(k, 10 * i, 5) for i, k in enumerate(kernels))]
    about = {"deviceProperties": [{"id": 0, "name": device}], "distributedInfo": distributed}
    return read_file(write(folder / name, events, **about))


LAYERS = ("gemm", "relu", "norm", "softmax", "add")


@pytest.mark.parametrize(
    ("name", "kernels", "about", "why"),
    [
        ("b.json", ("conv", "pool", "bn"), {}, "of 8 kernels a.json and b.json have 0 in common"),
        ("b.json", LAYERS, {"device": "H100"}, "recorded on A100, b.json on H100"),
        (
            "b.json",
            LAYERS,
            {"rank": 1, "world_size": 4},
            "a.json is from a job of 2 ranks, b.json from one of 4",
        ),
        ("b.json", LAYERS, {"rank": 1, "world_size": 2}, ""),
        ("b.json", (*LAYERS, "embedding", "loss"), {}, ""),  # the last stage of a pipeline
    ],
)
def test_unrelated_traces_are_no_ranks_of_one_job(
    tmp_path: Path, name: str, kernels: tuple[str, ...], about: dict[str, Any], why: str
) -> None:
    first = traced(tmp_path, "a.json", *LAYERS, rank=0, world_size=2)
    found = unrelated([first, traced(tmp_path, name, *kernels, **about)])
    assert (why in found) if why else found == ""


def test_more_traces_than_ranks_are_not_of_one_job(tmp_path: Path) -> None:
    files = [traced(tmp_path, f"{i}.json", *LAYERS, rank=i, world_size=2) for i in range(3)]
    assert "there are 3, but 2.json is one of 2" in unrelated(files)


def test_the_command_refuses_a_folder_of_unrelated_traces(tmp_path: Path) -> None:
    traced(tmp_path, "a.json", *LAYERS)
    traced(tmp_path, "b.json", "conv", "pool", "bn")
    with pytest.raises(UsageError, match="not the ranks of one job") as refused:
        read_ranks([tmp_path])
    assert refused.value.hint == "analyze them one by one, or compare two with --against"
