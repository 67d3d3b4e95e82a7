"""A run directory of several machines: one report, whatever their clocks and process ids."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tdiag.evidence.feeding import Loaders
from tdiag.evidence.from_run import load_run
from tdiag.evidence.from_run.machines import PID_BITS, home_of, read_job
from tdiag.evidence.machine import Environment, System, Threads
from tdiag.evidence.ranks import Ranks
from tdiag.evidence.steps import Steps
from tdiag.evidence.store import Evidence
from tdiag.probe.wire import ON_CPU

from .making import MS, Run, loader
from .test_ranks_of_run import Step, follow, step

BOOTED = 7_000_000 * MS  # how much longer the other machine has been up
UNIX = 1_700_000_000_000 * MS
FAST, SLOW = step(data=4, backward=36), step(data=30, backward=10)


def rank(
    part: Path, number: int, taken: Step, *, up: int = 0, wall: int = 0, world: int = 2,
    host: str = "a", again: bool = False,
) -> None:  # fmt: skip
    """``up``: what the machine's monotonic clock is ahead of the test's, ``wall``: its wall's. Both
    machines give their processes the same numbers. ``again``: of a second, longer try."""
    run = Run(part, pid=100 + again, rank=number)
    run.now = run.began = run.now + again * 20_000 * MS
    run.lines[0].update(world_size=world, t=1, unix_ns=UNIX + wall)
    loader(run)
    run.add("torch", version="2.13.0", devices=[], intra_op=1)
    run.add("collective", id=0, name="DistributedDataParallel", at=["/u/t.py", 9, "f"])
    run.add("ddp", find_unused_parameters=False, parameter_bytes=4000)
    run.steps(30 + 10 * again, taken)
    if number:
        follow(run)
    for line in run.lines:
        for name in {"t", "s"} & line.keys():
            line[name] += up
        if line["kind"] == "steps":
            marks = line["m"]
            for i in range(0, len(marks), 3):
                marks[i + 1] += up * (marks[i] != ON_CPU)
    run.write(hostname=host, notes=[f"a note of {host}"])
    (part / "system.jsonl").write_text("".join(
        json.dumps(record) + "\n" for record in (
            {"kind": "machine", "t": up, "cores_machine": 4 + 4 * number,
             "cores_allowed": 4 + 4 * number, "ram_total": 1 << 30},
            *({"kind": "sample", "t": up + second * 500 * MS,
               "procs": {"100": [second * MS, 1 << 20, 0]}, "busy_ns": 0} for second in range(9)),
        )
    ))  # fmt: skip


def two_machines(folder: Path, *, first: int = 0, wall: int = 0) -> Evidence:
    """``first``: the rank on the machine that made the run directory."""
    places = {first: (folder, "a", 0, 0), 1 - first: (folder / "nodes" / "b", "b", BOOTED, wall)}
    for number, taken in enumerate((FAST, SLOW)):
        part, host, up, off = places[number]
        rank(part, number, taken, up=up, wall=off, host=host)
    return load_run(folder)


def ranks_of(evidence: Evidence) -> Ranks:
    found = evidence.get(Ranks)
    assert found is not None, evidence.missing.get(Ranks)
    return found


def notes(evidence: Evidence) -> str:
    return "\n".join(note.text for note in evidence.notes)


def test_ranks_of_both_are_compared_and_the_late_one_judged(tmp_path: Path) -> None:
    evidence = two_machines(tmp_path)
    found = ranks_of(evidence)
    assert [r.rank for r in found.ranks] == [0, 1]
    assert (found.slowest, found.waited_ns) == (1, 26 * MS)
    assert "this report is about rank 1 on b; the others wait for it" in notes(evidence)
    assert "a: a note of a\nb: a note of b" in notes(evidence)


def test_the_machine_of_the_judged_rank_is_described(tmp_path: Path) -> None:
    system = two_machines(tmp_path).get(System)
    assert system is not None and system.cores_machine == 8
    assert system.cores_used == pytest.approx(0.002)  # its samples lie in the clean steps


@pytest.mark.parametrize("first", [0, 1])
def test_rank_0_speaks_for_the_run_wherever_it_is(first: int, tmp_path: Path) -> None:
    evidence = two_machines(tmp_path, first=first)
    assert home_of(tmp_path) == (tmp_path if first == 0 else tmp_path / "nodes" / "b")
    environment = evidence.get(Environment)
    assert environment is not None and environment.hostname == ("a" if first == 0 else "b")
    assert ranks_of(evidence).slowest == 1


@pytest.mark.parametrize("wall", [0, 3_000 * MS, -40 * MS])
def test_walls_clocks_that_differ_are_set_by_the_steps(wall: int, tmp_path: Path) -> None:
    two_machines(tmp_path, wall=wall)
    job = read_job(tmp_path)
    (mine,), (theirs,) = job.processes, job.elsewhere
    assert abs(int((mine.steps.end - theirs.steps.end).max())) <= 30 * MS
    assert theirs.pid == 100 + (2 << PID_BITS)


def test_one_machine_alone_is_a_run_directory(tmp_path: Path) -> None:
    two_machines(tmp_path)
    alone = load_run(tmp_path / "nodes" / "b")
    assert "b: " not in notes(alone) and alone.get(Environment) is not None
    shutil.rmtree(tmp_path / "nodes")
    assert load_run(tmp_path).get(Steps) is not None


@pytest.mark.parametrize(("number", "world"), [(0, 2), (1, 4)])
def test_another_job_is_left_out_and_said(number: int, world: int, tmp_path: Path) -> None:
    rank(tmp_path, 0, FAST)
    rank(tmp_path / "nodes" / "b", number, SLOW, world=world, host="b")
    evidence = load_run(tmp_path)
    assert evidence.get(Ranks) is None and evidence.get(Steps) is not None
    assert "nodes/b is left out: its ranks are not further ranks of this job" in notes(evidence)
    assert "a note of b" not in notes(evidence)


def test_a_job_that_was_started_again_may_have_its_ranks_elsewhere(tmp_path: Path) -> None:
    for again in (False, True):
        rank(tmp_path, int(again), FAST, again=again)
        rank(tmp_path / "nodes" / "b", int(not again), SLOW, up=BOOTED, host="b", again=again)
    evidence = load_run(tmp_path)
    assert "is left out: its" not in notes(evidence)
    assert "left out: 2 processes that trained before or after the judged ones" in notes(evidence)
    assert {row.rank for row in ranks_of(evidence).ranks} == {0, 1}
    steps = evidence.get(Steps)
    assert steps is not None and steps.count == 40


def test_workers_of_another_machine_are_not_taken_for_ones_here(tmp_path: Path) -> None:
    """Both machines have a worker of the same number."""
    for number, (part, wall) in enumerate(((tmp_path, 7), (tmp_path / "nodes" / "b", 90))):
        rank(part, number, FAST, up=BOOTED * number, host="ab"[number])
        up = BOOTED * number
        lines = (part / "events" / "100.jsonl").read_text()
        made = {"kind": "iterator", "t": up + 1, "loader": 0, "pids": [200], "started": True}
        (part / "events" / "100.jsonl").write_text(json.dumps(made) + "\n" + lines)
        about = {"kind": "process", "pid": 200, "t": up + 1, "unix_ns": UNIX}
        role = {"kind": "role", "role": "worker", "worker": 0, "loader": 0, "tid": 200}
        fetches = [
            {"kind": "fetch", "t": up + 1_100 * MS + i * 50 * MS, "wall": wall * MS, "worker": 0,
             "loader": 0, "cpu": MS, "samples": 8}
            for i in range(20)
        ]  # fmt: skip
        text = "".join(json.dumps(line) + "\n" for line in (about, role, *fetches))
        (part / "events" / "200.jsonl").write_text(text)
    loaders = load_run(tmp_path).get(Loaders)
    assert loaders is not None
    (mine,) = (one for one in loaders.loaders if one.fetch_count)
    assert set(mine.fetch_ns) == {7 * MS}


@pytest.mark.parametrize(("host", "cores", "processes"), [("a", 0.004, 2), ("b", 0.002, 1)])
def test_ranks_below_a_tdiag_each_on_one_machine_are_no_strangers_there(
    host: str, cores: float, processes: int, tmp_path: Path
) -> None:
    """As `srun tdiag run train.py` starts them: each has used 0.002 cores."""
    up = BOOTED * (host == "b")
    rank(tmp_path, 0, FAST)
    rank(tmp_path / "nodes" / host, 1, FAST, up=up, host=host)
    (tmp_path / "nodes" / host / "events" / "100.jsonl").rename(
        tmp_path / "nodes" / host / "events" / "101.jsonl"
    )
    evidence = load_run(tmp_path)
    system, threads = evidence.get(System), evidence.get(Threads)
    assert system is not None and threads is not None
    assert system.cores_used == pytest.approx(cores, rel=0.1)
    assert threads.processes == processes
