"""NVIDIA GPUs through NVML: use, memory, clocks, and why clocks are held down.

Everything is guarded: without the library, a driver or a device, ``missing`` says why and
samples are None. A single value that a device does not give (MIG, older drivers) is None.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

# nvmlClocksEventReasons bits (nvml.h) that mean slower than the device could be; idle and
# application-set clocks are choices, not throttling.
THROTTLE = {
    0x04: "power cap",
    0x08: "hardware slowdown",
    0x20: "thermal (software)",
    0x40: "thermal (hardware)",
    0x80: "power brake",
}


class Gpus:
    """The devices that the program may see (``CUDA_VISIBLE_DEVICES``)."""

    def __init__(self) -> None:
        self.missing = ""
        self.handles: list[tuple[int, Any]] = []
        self.nvml: Any = None
        try:
            import pynvml
        except ImportError:
            self.missing = "nvidia-ml-py is not installed"
            return
        try:
            pynvml.nvmlInit()
            self.nvml = pynvml
            self.handles = self._visible()
        except pynvml.NVMLError as error:
            self.missing = f"NVML: {error}"
            return
        if not self.handles:
            self.missing = "no visible NVIDIA device"

    def describe(self) -> list[dict[str, Any]] | None:
        """Index, name and limits of each device; None where there is none to look at."""
        if not self.handles:
            return None
        return [
            {
                "index": index,
                "name": self._text("nvmlDeviceGetName", handle),
                "uuid": self._text("nvmlDeviceGetUUID", handle),
                "memory_total": self._field("nvmlDeviceGetMemoryInfo", handle, "total"),
                "sm_max_mhz": self._ask("nvmlDeviceGetMaxClockInfo", handle, 1),
            }
            for index, handle in self.handles
        ]

    def sample(self) -> list[dict[str, Any]] | None:
        """Use (0..1, share of NVML's last interval with any kernel running), bytes, MHz."""
        if not self.handles:
            return None
        return [
            {
                "index": index,
                "util": self._util(handle),
                "memory_used": self._field("nvmlDeviceGetMemoryInfo", handle, "used"),
                "sm_mhz": self._ask("nvmlDeviceGetClockInfo", handle, 1),  # NVML_CLOCK_SM
                "throttle": self._throttle(handle),
            }
            for index, handle in self.handles
        ]

    def close(self) -> None:
        if self.nvml is not None:
            self._ask("nvmlShutdown")
            self.nvml, self.handles = None, []

    def _visible(self) -> list[tuple[int, Any]]:
        count = self.nvml.nvmlDeviceGetCount()
        handles = [(i, self.nvml.nvmlDeviceGetHandleByIndex(i)) for i in range(count)]
        wanted = os.environ.get("CUDA_VISIBLE_DEVICES")
        if wanted is None:
            return handles
        names = [name.strip() for name in wanted.split(",") if name.strip()]
        return [
            (index, handle)
            for index, handle in handles
            if str(index) in names or self._named(handle, names)
        ]

    def _named(self, handle: Any, names: list[str]) -> bool:
        uuid = self._text("nvmlDeviceGetUUID", handle) or ""
        return any(name.startswith("GPU-") and uuid.startswith(name) for name in names)

    def _util(self, handle: Any) -> float | None:
        percent = self._field("nvmlDeviceGetUtilizationRates", handle, "gpu")
        return None if percent is None else percent / 100

    def _throttle(self, handle: Any) -> list[str] | None:
        name = "nvmlDeviceGetCurrentClocksEventReasons"
        if not hasattr(self.nvml, name):  # its name before driver 535
            name = "nvmlDeviceGetCurrentClocksThrottleReasons"
        bits = self._ask(name, handle)
        return None if bits is None else [text for bit, text in THROTTLE.items() if bits & bit]

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
