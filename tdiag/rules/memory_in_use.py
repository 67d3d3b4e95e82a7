"""Memory in use and in total, on the device or host that holds the tensors."""

from __future__ import annotations

from tdiag.evidence.machine import Environment, System
from tdiag.evidence.memory import DeviceMemory
from tdiag.rules.base import Abstain

# The measure's name in each rule that reads it. It excludes torch's cache and other programs on the
# device: NVML counts both as used.
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
    """Bytes at the peak where the tensors are: on the device, or without one in this program."""
    if environment.device_count:
        return device_memory(memory)[0]
    if system is None or not system.rss_bytes:
        raise Abstain("the memory in use was not measured")
    return system.rss_bytes


def memory(
    system: System | None, environment: Environment, allocated: DeviceMemory | None
) -> tuple[int, int]:
    """(used, total) bytes of the device; without one, of this program and what it may still
    allocate."""
    if environment.device_count:
        return device_memory(allocated)
    used = in_use(system, environment, allocated)
    free = system.ram_available_bytes if system else None
    if free is None:
        raise Abstain("the free memory was not measured")
    return used, used + free
