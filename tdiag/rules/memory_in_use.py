"""Memory in use and in total, where the tensors lie."""

from __future__ import annotations

from tdiag.evidence.machine import Environment, System
from tdiag.evidence.memory import DeviceMemory
from tdiag.rules.base import Abstain

# Named in the evidence of each rule that reads it. What torch has cached and what other programs
# have on the device is not in it: NVML counts both as used.
PEAK = "device memory allocated, peak"


def device_memory(memory: DeviceMemory | None) -> tuple[int, int]:
    """(allocated by torch at the peak, total) of the process's own device, bytes; Abstain if
    unknown."""
    if memory is None or not memory.peak_allocated_bytes:
        raise Abstain("torch's peak of allocated device memory was not read")
    if not memory.capacity_bytes:
        raise Abstain("the size of the device's memory is unknown")
    return memory.peak_allocated_bytes, memory.capacity_bytes


def in_use(system: System | None, environment: Environment, memory: DeviceMemory | None) -> int:
    """Bytes at the peak where the tensors lie: on the device; without one, of this program."""
    if environment.device_count:
        return device_memory(memory)[0]
    if system is None or not system.rss_bytes:
        raise Abstain("the memory in use was not measured")
    return system.rss_bytes


def memory(
    system: System | None, environment: Environment, allocated: DeviceMemory | None
) -> tuple[int, int]:
    """Of the device; without one, of this program and what it may still allocate."""
    if environment.device_count:
        return device_memory(allocated)
    used = in_use(system, environment, allocated)
    free = system.ram_available_bytes if system else None
    if free is None:
        raise Abstain("the free memory was not measured")
    return used, used + free
