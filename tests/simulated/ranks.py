"""Ranks of one job whose hosts run ahead: each step's collectives keep their devices together, and
a queue of launches lies between each device and its host."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tdiag.probe import accelerator
from tdiag.probe.control import arrive

DEPTH = 17  # steps of 60 launches that a queue of 1,024 holds


class Job:
    """``train(body)`` runs a thread a rank; ``body(probe)`` is called at the end of each step and
    says whether the rank leaves. Rank 0 is slow: it makes a step when the others can go no further,
    so that they are as far ahead of it as they ever are."""

    def __init__(self, folder: Path, ranks: int, monkeypatch: pytest.MonkeyPatch) -> None:
        (folder / "control").mkdir(parents=True)
        self.probes = [
            SimpleNamespace(
                run_dir=str(folder), step=0, rank=rank, ranks=ranks, leads=rank == 0, written=[],
                began_ns=0,
                config={"steps": None, "time_budget_s": 1e6, "profiling": True},
                guard=lambda function: function,
            )
            for rank in range(ranks)
        ]  # fmt: skip
        for probe in self.probes:
            probe.recorder = SimpleNamespace(
                write=lambda kind, p=probe, **fields: p.written.append({"kind": kind, **fields}),
                flush=lambda: None,
            )
            arrive(probe)  # type: ignore[arg-type]
        self.changed = threading.Condition()
        self.waits: list[Callable[[], bool] | None] = [None] * ranks  # for what, each
        self.left = [False] * ranks
        self.here = threading.local()
        self.hung: list[int] = []
        monkeypatch.setattr(accelerator, "synchronised", self._synchronise)

    def train(self, body: Callable[[Any], bool], most: int = 500) -> list[int]:
        """Steps that each rank had ended when it left."""
        threads = [threading.Thread(target=self._run, args=(p, body, most)) for p in self.probes]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return [probe.step for probe in self.probes]

    def _run(self, probe: Any, body: Callable[[Any], bool], most: int) -> None:
        self.here.rank = probe.rank
        while probe.step < most:
            if probe.rank == 0:
                self._wait(lambda: all(map(self._halted, range(1, len(self.probes)))))
            else:
                self._wait(lambda: probe.step - self._slowest() < DEPTH)
            with self.changed:
                probe.step += 1
                self.changed.notify_all()
            if body(probe):
                break
        with self.changed:
            self.left[probe.rank] = True
            self.changed.notify_all()

    def _synchronise(self) -> int:
        """Wait until every rank has launched this rank's last step: its collectives end then."""
        step = self.probes[self.here.rank].step
        self._wait(lambda: self._slowest() >= step)
        return 1

    def _slowest(self) -> int:
        return min(probe.step for probe in self.probes)

    def _halted(self, rank: int) -> bool:
        """It has left, or waits for what has not come."""
        wait = self.waits[rank]
        return self.left[rank] or (wait is not None and not wait())

    def _wait(self, until: Callable[[], bool]) -> None:
        """The collectives of a rank that has left never end: whoever waits for them hangs."""
        rank = self.here.rank
        with self.changed:
            self.waits[rank] = until
            self.changed.notify_all()
            while not until():
                if any(self.left) and all(map(self._halted, range(len(self.probes)))):
                    self.hung.append(rank)
                    break
                self.changed.wait(0.05)
            self.waits[rank] = None
