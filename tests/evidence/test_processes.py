"""Several processes of one run: which train, and which share the cores."""

from __future__ import annotations

from pathlib import Path

from tdiag.evidence.from_run import load_run
from tdiag.evidence.machine import Threads
from tdiag.evidence.steps import Steps

from .making import MS, Run, plain


def test_a_parent_that_evaluates_after_its_processes_did_not_train(tmp_path: Path) -> None:
    """Hogwild: two processes share a model; the third, with most steps, reads a loader."""
    for pid in (101, 102):
        worker = Run(tmp_path, pid=pid)
        worker.add("torch", version="2.13.0", intra_op=2)
        rows = [
            ["num_threads", n, ["/u/train.py", line, "train"], 0] for line, n in ((9, 2), (4, 1))
        ]
        worker.add("settings", rows=rows)
        worker.steps(30, plain).write()
    parent = Run(tmp_path, boundary="batch", pid=100)
    parent.steps(90, lambda run, _: run.batch(5))
    evidence = load_run(parent.write())
    assert "this report is about process 101, which took most steps; 1 more process trained" in [
        note.text for note in evidence.notes
    ]
    threads = evidence.get(Threads)
    assert threads is not None
    assert (threads.processes, threads.together) == (2, 4)
    assert threads.set_at is not None
    assert threads.set_at.line == 9


def test_processes_that_train_one_after_the_other_share_no_cores(tmp_path: Path) -> None:
    for pid, begin in ((101, 1), (102, 5)):
        run = Run(tmp_path, pid=pid)
        run.now = run.began = begin * 1000 * MS
        run.add("torch", version="2.13.0", intra_op=2)
        run.steps(100, plain)
        folder = run.write()
    threads = load_run(folder).get(Threads)
    assert threads is not None
    assert (threads.processes, threads.together) == (1, 2)


def test_a_run_that_only_evaluates_is_read_by_its_batches(tmp_path: Path) -> None:
    run = Run(tmp_path, boundary="batch").steps(30, lambda run, _: run.batch(5))
    steps = load_run(run.write()).get(Steps)
    assert steps is not None
    assert steps.boundary == "batch"


def test_another_machines_processes_share_no_cores(tmp_path: Path) -> None:
    """Its clock began at another moment, though both happen to read alike."""
    for pid, booted in ((101, 0), (102, 3_000_000 * MS)):
        run = Run(tmp_path, pid=pid)
        run.lines[0]["unix_ns"] = booted
        run.add("torch", version="2.13.0", intra_op=2)
        folder = run.steps(30, plain).write()
    threads = load_run(folder).get(Threads)
    assert threads is not None
    assert threads.processes == 1
