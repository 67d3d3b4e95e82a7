"""What a device waits for launches, in the rules that claim it."""

from __future__ import annotations

from tdiag.evidence.device import DeviceTime
from tdiag.evidence.kinds import Budget
from tdiag.rules.base import held

# Budget components in which the device is idle while the host issues work. What it waits for data
# or in the loss is starved of launches too, and has rules of its own.
ISSUING = ("launch", "optimizer", "other")
# What they are called in the replay of a trace (tdiag.evidence.replay).
ISSUING_TAGS = ("call", *(f"host {state}" for state in ISSUING))


def starved_ns(budget: Budget, device: DeviceTime) -> float:
    """Device idle before kernels that start the moment they are launched, ns per clean step; at
    most what the budget holds of issuing work."""
    return min(device.launch_starved_ns * budget.step_ns / device.step_ns, held(budget, *ISSUING))
