"""The device's clocks, beside the run."""

from __future__ import annotations

from tdiag.model.kind import Kind


class HeldDown(Kind, frozen=True, kw_only=True):
    """A reason that held the clocks down. ``frac``: of the samples; ``sm_mhz``: the processors'
    clock in these, mean, None: not told."""

    reason: str
    frac: float
    sm_mhz: float | None = None


class DeviceClocks(Kind, frozen=True, kw_only=True):
    """What NVML said of the most used device in the clean window.

    ``held_down``: all reasons that were seen, the most frequent first; a sample may have several.
    ``sm_max_mhz``: the highest clock that the processors can take, None: not told.
    """

    samples: int
    held_down: tuple[HeldDown, ...]
    sm_max_mhz: int | None = None
