"""NVIDIA GPUs through NVML: use by process, memory, clocks, and why clocks are reduced.

Everything is guarded: without the library, a driver or a device, ``missing`` says why and samples
are None. A value that a device does not report (MIG, older drivers) is None.

NVML numbers devices by their place on the bus; CUDA may number them differently. So tdiag may watch
more devices than the program uses; the `uuid`, which the probe reports too, identifies the right
one.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import psutil

# nvmlClocksEventReasons bits (nvml.h) that mean slower than possible; idle and application-set
# clocks are choices, not throttling.
THROTTLE = {
    0x04: "power cap",
    0x08: "hardware slowdown",
    0x20: "thermal (software)",
    0x40: "thermal (hardware)",
    0x80: "power brake",
}


class _Handle(NamedTuple):
    """A device, or an instance of a partitioned one (MIG). ``whole``: the undivided device, whose
    clocks the instances share."""

    number: int
    handle: Any
    whole: Any


class Gpus:
    """The devices that the program may see (``CUDA_VISIBLE_DEVICES``)."""

    def __init__(self, environment: Mapping[str, str] = os.environ) -> None:
        self.environment = environment
        self.missing = ""
        self.gpus: list[_Handle] = []
        self.nvml: Any = None
        self.read_us: dict[int, int] = {}  # device → its last reading of use by process
        self.names: dict[int, str | None] = {}  # by pid
        try:
            import pynvml
        except ImportError:
            self.missing = "nvidia-ml-py is not installed"
            return
        try:
            pynvml.nvmlInit()
            self.nvml = pynvml
            self.gpus = self._visible(list(self._allowed()))
        except pynvml.NVMLError as error:
            self.missing = f"NVML: {error}"
            return
        refused, self.missing = self.missing, ""
        if not self.gpus:
            self.missing = refused or "no visible NVIDIA device"

    def describe(self) -> list[dict[str, Any]] | None:
        """Index, name and limits of each device; None if there is none."""
        if not self.gpus:
            return None
        return [
            {
                "index": gpu.number,
                "name": self._text("nvmlDeviceGetName", gpu.handle),
                "uuid": self._text("nvmlDeviceGetUUID", gpu.handle),
                "memory_total": self._field("nvmlDeviceGetMemoryInfo", gpu.handle, "total"),
                "sm_max_mhz": self._ask("nvmlDeviceGetMaxClockInfo", gpu.whole, 1),
                "cpus_near": self._cpus_near(gpu.whole),
            }
            for gpu in self.gpus
        ]

    def sample(self) -> list[dict[str, Any]] | None:
        """Use (0..1, share of NVML's last interval with any kernel running), bytes, MHz; and use by
        process since the last sample: pid → [0..1, its name]."""
        if not self.gpus:
            return None
        return [
            {
                "index": gpu.number,
                "util": self._util(gpu.handle),
                "memory_used": self._field("nvmlDeviceGetMemoryInfo", gpu.handle, "used"),
                "sm_mhz": self._ask("nvmlDeviceGetClockInfo", gpu.whole, 1),  # NVML_CLOCK_SM
                "throttle": self._throttle(gpu.whole),
                "processes": self._processes(gpu),
            }
            for gpu in self.gpus
        ]

    def close(self) -> None:
        if self.nvml is not None:
            self._ask("nvmlShutdown")
            self.nvml, self.gpus = None, []

    def _allowed(self) -> Iterator[_Handle]:
        """The devices that this job may query. A batch system refuses other jobs' devices one by
        one. Instances of partitioned devices are numbered after all devices."""
        count = self.nvml.nvmlDeviceGetCount()
        instances = count
        for index in range(count):
            try:
                whole = self.nvml.nvmlDeviceGetHandleByIndex(index)
            except self.nvml.NVMLError as error:
                self.missing = f"NVML: {error}"
                continue
            divided = list(self._instances(whole))
            for handle in divided:
                yield _Handle(instances, handle, whole)
                instances += 1
            if not divided:
                yield _Handle(index, whole, whole)

    def _instances(self, whole: Any) -> Iterator[Any]:
        if (self._ask("nvmlDeviceGetMigMode", whole) or [0])[0] != 1:
            return
        for number in range(self._ask("nvmlDeviceGetMaxMigDeviceCount", whole) or 0):
            handle = self._ask("nvmlDeviceGetMigDeviceHandleByIndex", whole, number)
            if handle is not None:
                yield handle

    def _visible(self, allowed: list[_Handle]) -> list[_Handle]:
        """The devices that CUDA shows to the program; all of them if the numbers are ambiguous."""
        wanted = self.environment.get("CUDA_VISIBLE_DEVICES")
        if wanted is None:
            return allowed
        chosen: set[int] = set()
        for name in (name.strip() for name in wanted.split(",")):
            if name.isdigit() and int(name) < len(allowed):
                if not self._ordered(allowed):
                    return allowed
                named = [allowed[int(name)]]
            else:
                named = [gpu for gpu in allowed if self._named(gpu, name)]
            if not named:
                break  # CUDA reads no further
            chosen.update(gpu.number for gpu in named)
        return [gpu for gpu in allowed if gpu.number in chosen]

    def _ordered(self, allowed: list[_Handle]) -> bool:
        """Whether CUDA numbers devices as NVML does. By default it puts the fastest first, and it
        counts one instance of a partitioned device."""
        if any(gpu.handle is not gpu.whole for gpu in allowed):
            return False
        by_bus = self.environment.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID"
        return by_bus or len({self._text("nvmlDeviceGetName", gpu.whole) for gpu in allowed}) == 1

    def _named(self, gpu: _Handle, name: str) -> bool:
        """Whether it has this name: ``GPU-…`` or ``MIG-…``, which may be abbreviated."""
        uuid = self._text("nvmlDeviceGetUUID", gpu.handle) or ""
        return name.startswith(("GPU-", "MIG-")) and uuid.startswith(name)

    def _util(self, handle: Any) -> float | None:
        percent = self._field("nvmlDeviceGetUtilizationRates", handle, "gpu")
        return None if percent is None else percent / 100

    def _throttle(self, handle: Any) -> list[str] | None:
        name = "nvmlDeviceGetCurrentClocksEventReasons"
        if not hasattr(self.nvml, name):  # its name before driver 535
            name = "nvmlDeviceGetCurrentClocksThrottleReasons"
        bits = self._ask(name, handle)
        return None if bits is None else [text for bit, text in THROTTLE.items() if bits & bit]

    def _processes(self, gpu: _Handle) -> dict[str, list[Any]] | None:
        """None if the device does not report it (MIG), or reports nothing new: an idle one.

        Drivers also return entries that are older than asked for, or far above 100 %
        (Syllo/nvtop#110)."""
        since = self.read_us.setdefault(gpu.number, time.time_ns() // 1000)
        entries = self._ask("nvmlDeviceGetProcessUtilization", gpu.handle, since) or ()
        used: dict[int, list[float]] = {}
        for entry in entries:
            if entry.timeStamp > since and entry.smUtil <= 100:
                used.setdefault(entry.pid, []).append(entry.smUtil / 100)
                self.read_us[gpu.number] = max(self.read_us[gpu.number], entry.timeStamp)
        shares = {pid: sum(each) / len(each) for pid, each in used.items()}
        return {str(pid): [share, self._name(pid)] for pid, share in shares.items()} or None

    def _name(self, pid: int) -> str | None:
        if pid not in self.names:
            self.names[pid] = None
            with contextlib.suppress(psutil.Error):
                self.names[pid] = psutil.Process(pid).name()
        return self.names[pid]

    def _cpus_near(self, handle: Any) -> list[int] | None:
        """The CPUs of the device's NUMA node; None if unknown, or if all are."""
        count = psutil.cpu_count() or 1
        words = self._ask("nvmlDeviceGetCpuAffinity", handle, (count + 63) // 64)
        near = [n for n in range(count) if words and words[n // 64] >> n % 64 & 1]
        return near if 0 < len(near) < count else None

    def _text(self, name: str, handle: Any) -> str | None:
        value = self._ask(name, handle)
        return value.decode() if isinstance(value, bytes) else value

    def _field(self, name: str, handle: Any, field: str) -> Any:
        return getattr(self._ask(name, handle), field, None)

    def _ask(self, name: str, *args: Any) -> Any:
        function: Callable[..., Any] | None = getattr(self.nvml, name, None)
        if function is None:
            return None
        try:
            return function(*args)
        except self.nvml.NVMLError:
            return None
