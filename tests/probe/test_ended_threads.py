"""CPU time of threads that end: a loader may start one for each epoch."""

from __future__ import annotations

import threading
import time
from pathlib import Path

from tdiag.evidence.steps import Phases
from tdiag.probe.procfs import python_threads_ns
from tdiag.probe.wire import ENDED

from .harness import watch_code

WORK_NS = 50_000_000
WORK_OF_A_BATCH_NS = 100_000  # 160,000 sines take several times as long on any core
SCRIPT = """
import queue, threading
import torch
net = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
def make(given):
    for _ in range(4):
        x = torch.linspace(0, 1, 4000)
        for _ in range(40):
            x = torch.sin(x)
        given.put(x[:8])
torch.set_num_threads(1)
threading.Thread(target=lambda: threading.Event().wait(600), daemon=True).start()
for epoch in range(200):
    given = queue.Queue(1)
    threading.Thread(target=make, args=(given,)).start()
    for _ in range(4):
        x = given.get()
        optimizer.zero_grad()
        net(x).mean().backward()
        optimizer.step()
"""


def spend(ns: int) -> None:
    until = time.thread_time_ns() + ns
    while time.thread_time_ns() < until:
        sum(range(100))


def test_what_ended_threads_have_spent() -> None:
    stays = threading.Event()
    kept = threading.Thread(target=stays.wait)
    kept.start()
    before = python_threads_ns()
    ends = threading.Thread(target=spend, args=(WORK_NS,))
    ends.start()
    ends.join()
    spend(WORK_NS)  # this thread's own time is not theirs
    after = python_threads_ns()
    stays.set()
    kept.join()
    spent = after[ENDED] - before[ENDED]
    assert 0.9 * WORK_NS < spent < 1.9 * WORK_NS


def test_batches_that_short_lived_threads_make_are_made_beside(tmp_path: Path) -> None:
    run = watch_code(tmp_path, SCRIPT, windows=["baseline"], short=True)
    assert run.returncode == 0 and run.of("failure") == [], run.err
    phases = run.evidence().get(Phases)
    assert phases is not None and phases.beside_ns is not None
    assert phases.beside_ns > WORK_OF_A_BATCH_NS
