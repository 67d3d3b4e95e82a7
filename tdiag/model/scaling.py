"""What `tdiag run --scaling` finds: the same job with more and more ranks.

The shape is public and versioned (``SCALING_VERSION``, ``tdiag/report/scaling.schema.json``).
"""

from __future__ import annotations

from typing import Literal

import msgspec

SCALING_VERSION = 1

#: Samples per rank beside those of the first count: as many (weak scaling), as many for the whole
#: job (strong scaling), neither, or not measured.
Load = Literal["same", "divided", "other", "unknown"]
#: Where a step loses to perfect scaling. What belongs to which: tdiag/diagnose/scaling_loss.py.
Row = Literal[
    "communication", "waiting", "communication_or_waiting", "input", "computing", "once_a_step",
    "host", "unattributed",
]  # fmt: skip


class Loss(msgspec.Struct, frozen=True):
    """ns per step more than with perfect scaling; below 0: less."""

    row: Row
    ns: int


class ScaledRun(msgspec.Struct, frozen=True, kw_only=True):
    """The job with ``ranks`` ranks. ``run``: its run directory. ``step_ns``: the clean step, mean
    over the ranks; None where it is not known: ``why``. ``samples``: of one rank per step, mean
    over the ranks; ``relative``: samples per second ÷ those of the first count, ``efficiency``:
    that ÷ how many times as many ranks there are, and ``ideal_ns``: the step if it were 1. None
    where samples are not known. ``loss``: its rows add up to ``step_ns`` − ``ideal_ns``.
    ``threads``: of one rank's torch. ``verdict``: of its own report."""

    ranks: int
    run: str
    step_ns: int | None = None
    samples: float | None = None
    load: Load = "unknown"
    relative: float | None = None
    efficiency: float | None = None
    ideal_ns: int | None = None
    loss: tuple[Loss, ...] = ()
    threads: int | None = None
    verdict: str = ""
    why: str = ""

    @property
    def lost_ns(self) -> int | None:
        """Per step, to perfect scaling."""
        if self.step_ns is None or self.ideal_ns is None:
            return None
        return self.step_ns - self.ideal_ns


class Scaling(msgspec.Struct, frozen=True, kw_only=True):
    """``runs``: by ranks; the first is what the others are compared with. ``cores``: available to
    the job; ``device``: as in a run's environment, "" where no run got so far."""

    schema_version: int = SCALING_VERSION
    tdiag: str
    command: tuple[str, ...]
    cores: float
    device: str
    runs: tuple[ScaledRun, ...]
    notes: tuple[str, ...] = ()
