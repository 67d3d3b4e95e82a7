"""What `tdiag run --scaling` finds: the same job with several numbers of ranks.

The shape is public and versioned (``SCALING_VERSION``, ``tdiag/report/scaling.schema.json``).
"""

from __future__ import annotations

from typing import Literal

import msgspec

SCALING_VERSION = 1

#: What stays the same compared with the first run: samples per rank (weak scaling), samples of the
#: whole job (strong scaling), neither, or unknown because samples were not measured.
Load = Literal["same", "divided", "other", "unknown"]
#: Where a step loses to perfect scaling; tdiag/diagnose/scaling_loss.py assigns the components.
Row = Literal[
    "communication", "waiting", "communication_or_waiting", "input", "computing", "once_a_step",
    "host", "unattributed",
]  # fmt: skip


class Loss(msgspec.Struct, frozen=True):
    """ns per step more than with perfect scaling; negative: less."""

    row: Row
    ns: int


class ScaledRun(msgspec.Struct, frozen=True, kw_only=True):
    """The job with ``ranks`` ranks. ``run``: its run directory. ``step_ns``: the clean step, mean
    over the ranks; None if unknown (``why`` gives the reason). ``samples``: samples of one rank per
    step, mean over the ranks. ``relative``: samples per second ÷ those of the first run.
    ``efficiency``: ``relative`` ÷ (ranks ÷ ranks of the first run). ``ideal_ns``: the step with
    perfect scaling. These are None if samples are unknown. ``loss``: rows that add up to
    ``step_ns`` − ``ideal_ns``. ``threads``: torch threads of one rank. ``verdict``: the verdict of
    the run's own report."""

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
        """Time lost to perfect scaling per step."""
        if self.step_ns is None or self.ideal_ns is None:
            return None
        return self.step_ns - self.ideal_ns


class Scaling(msgspec.Struct, frozen=True, kw_only=True):
    """``runs``: sorted by ranks; the others are compared with the first. ``cores``: available to
    the job. ``device``: as in a run's environment, "" if no run got that far."""

    schema_version: int = SCALING_VERSION
    tdiag: str
    command: tuple[str, ...]
    cores: float
    device: str
    runs: tuple[ScaledRun, ...]
    notes: tuple[str, ...] = ()
