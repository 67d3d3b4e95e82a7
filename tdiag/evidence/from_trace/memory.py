"""What the device's caching allocator held."""

from __future__ import annotations

import numpy as np

from tdiag.evidence.device import DeviceMemory
from tdiag.evidence.from_trace.steps import Window
from tdiag.evidence.from_trace.view import View
from tdiag.trace import MEMORY_COLUMNS

CPU = 0  # c10::DeviceType


def device_memory(view: View, window: Window) -> DeviceMemory | None:
    """None where the trace has no allocator events of a device with running totals."""
    table = dict(zip(MEMORY_COLUMNS, view.trace.memory.T, strict=True))
    inside = (table["ts_ns"] >= window.begin) & (table["ts_ns"] < window.end)
    mine = inside & (table["device_type"] > CPU) & (table["allocated"] > 0)
    if not mine.any():
        return None
    most_used = np.bincount(table["device"][mine].clip(0)).argmax()
    mine &= table["device"].clip(0) == most_used
    sizes = [
        d.get("totalGlobalMem") for d in view.trace.device_properties if d.get("id") == most_used
    ]
    return DeviceMemory(
        peak_allocated_bytes=int(table["allocated"][mine].max()),
        peak_reserved_bytes=int(table["reserved"][mine].max()),
        capacity_bytes=sizes[0] if sizes and isinstance(sizes[0], int) else None,
    )
