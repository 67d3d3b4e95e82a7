"""Memory in use and in total, where the tensors lie."""

from __future__ import annotations

from tdiag.evidence.machine import Environment, System
from tdiag.rules.base import Abstain


def device_memory(system: System, environment: Environment) -> tuple[int, int]:
    """(in use at the peak, total) of the only visible device, bytes; Abstain if unknown."""
    if environment.device_count != 1:
        raise Abstain("several devices are visible: it is unknown whose memory was measured")
    used, total = system.gpu_memory_used_bytes, system.gpu_memory_total_bytes
    if not used or not total:
        raise Abstain("the device's memory in use was not measured")
    return used, total


def memory(system: System, environment: Environment) -> tuple[int, int]:
    """Of the device; without one, of this program and what it may still allocate."""
    if environment.device_count:
        return device_memory(system, environment)
    used, free = system.rss_bytes, system.ram_available_bytes
    if used is None or free is None:
        raise Abstain("the memory in use was not measured")
    return used, used + free
