"""The device's clocks, beside the run."""

from __future__ import annotations

from tdiag.evidence.base import Kind


class DeviceClocks(Kind, frozen=True, kw_only=True):
    """What NVML said of the most used device in the clean window.

    ``held_down``: of its samples, the share in which each reason held its clocks down; all reasons
    that were seen. ``sm_mhz``: of the processors, mean; ``sm_max_mhz``: the highest they can take.
    None: not told.
    """

    samples: int
    held_down: dict[str, float]
    sm_mhz: float | None = None
    sm_max_mhz: int | None = None
