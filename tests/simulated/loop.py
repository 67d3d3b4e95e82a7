"""A training loop on a simulated device, watched by the probe of this very process."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tdiag.probe import facts
from tdiag.probe.boundary import OPTIMIZER, Boundary
from tdiag.probe.capture import make_capture
from tdiag.probe.core import Probe
from tdiag.probe.inspection import Inspection
from tdiag.probe.windows import Windows
from tests.probe.harness import Watched, environment, read

from .device import SimulatedCuda


class Loop:
    """``body`` is one step; the probe hears of its end as from the leading optimizer."""

    def __init__(
        self,
        folder: Path,
        monkeypatch: pytest.MonkeyPatch,
        body: Callable[[SimulatedCuda], None],
        **config: Any,
    ) -> None:
        self.cuda = SimulatedCuda()
        self.cuda.install(monkeypatch)
        self.body, self.run_dir = body, folder / "run"
        environment(self.run_dir, {}, **{"time_budget_s": 600.0, **config})
        self.probe = Probe(str(self.run_dir))
        self.boundary = Boundary(self.probe)
        inspection = Inspection(self.probe, self.boundary)
        self.windows = Windows(self.probe, self.boundary, inspection, make_capture)
        self.probe.between_steps = self.windows.between_steps
        self.boundary.began_again = self.probe.guard(self.windows.restart)
        self.probe.marks.mine()
        facts.write_process(self.probe)

    def train(self, steps: int) -> Watched:
        """So many steps, or until the probe ends the program; what it wrote down."""
        try:
            for _ in range(steps):
                self.body(self.cuda)
                self.boundary.ended(OPTIMIZER)
        except SystemExit:
            pass
        return self.written()

    def written(self) -> Watched:
        self.probe.recorder.flush()
        return Watched(0, "", "", self.run_dir, read(self.run_dir))


def truth(body: Callable[[SimulatedCuda], None], steps: int = 1000) -> float:
    """ns a step of the same loop with nobody watching, from synchronisation to synchronisation."""
    cuda = SimulatedCuda()
    began = cuda.now
    for _ in range(steps):
        body(cuda)
    cuda.synchronize()
    return (cuda.now - began) / steps
