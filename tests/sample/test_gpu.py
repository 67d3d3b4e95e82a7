"""NVML's values as they are, None for what a device does not give, and why there is none."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from tdiag.sample.gpu import Gpus


class NVMLError(Exception):
    pass


class FakeNvml(ModuleType):
    """Two devices; the second one's clocks are not told, as under MIG."""

    NVMLError = NVMLError

    def __init__(self) -> None:
        super().__init__("pynvml")
        self.reasons = 0x24
        self.open = False

    def nvmlInit(self) -> None:
        self.open = True

    def nvmlShutdown(self) -> None:
        self.open = False

    def nvmlDeviceGetCount(self) -> int:
        return 2

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        return index

    def nvmlDeviceGetName(self, handle: int) -> bytes:
        return b"NVIDIA Test"

    def nvmlDeviceGetUUID(self, handle: int) -> str:
        return f"GPU-{handle}abc"

    def nvmlDeviceGetMemoryInfo(self, handle: int) -> Any:
        return SimpleNamespace(total=1000, used=10 + handle)

    def nvmlDeviceGetUtilizationRates(self, handle: int) -> Any:
        return SimpleNamespace(gpu=37, memory=5)

    def nvmlDeviceGetMaxClockInfo(self, handle: int, kind: int) -> int:
        return 1980

    def nvmlDeviceGetClockInfo(self, handle: int, kind: int) -> int:
        if handle == 1:
            raise NVMLError("Not Supported")
        return 1200

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, handle: int) -> int:
        return self.reasons


@pytest.fixture
def nvml(monkeypatch: pytest.MonkeyPatch) -> FakeNvml:
    fake = FakeNvml()
    monkeypatch.setitem(sys.modules, "pynvml", fake)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return fake


def test_every_value_with_its_unit(nvml: FakeNvml) -> None:
    gpus = Gpus()
    described, sample = gpus.describe(), gpus.sample()
    assert described is not None and sample is not None
    assert described[0] == {
        "index": 0, "name": "NVIDIA Test", "uuid": "GPU-0abc", "memory_total": 1000,
        "sm_max_mhz": 1980,
    }  # fmt: skip
    assert sample[0] == {
        "index": 0, "util": 0.37, "memory_used": 10, "sm_mhz": 1200,
        "throttle": ["power cap", "thermal (software)"],
    }  # fmt: skip
    assert sample[1]["sm_mhz"] is None
    gpus.close()
    assert not nvml.open and gpus.sample() is None


def test_idle_clocks_are_no_throttling(nvml: FakeNvml) -> None:
    nvml.reasons = 0x1 | 0x2
    sample = Gpus().sample()
    assert sample is not None and sample[0]["throttle"] == []


@pytest.mark.parametrize(
    ("visible", "seen"), [("1", [1]), ("GPU-0a", [0]), ("1,0", [0, 1]), ("", [])]
)
def test_only_the_programs_devices_are_watched(
    visible: str, seen: list[int], nvml: FakeNvml, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    gpus = Gpus()
    assert [gpu["index"] for gpu in gpus.sample() or []] == seen
    assert bool(gpus.missing) == (not seen)


def test_no_driver_and_no_library_say_so(nvml: FakeNvml, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> None:
        raise NVMLError("Driver Not Loaded")

    monkeypatch.setattr(nvml, "nvmlInit", refuse)
    assert Gpus().missing == "NVML: Driver Not Loaded"
    monkeypatch.setitem(sys.modules, "pynvml", None)
    gpus = Gpus()
    assert (gpus.describe(), gpus.sample()) == (None, None)
    assert gpus.missing == "nvidia-ml-py is not installed"
    gpus.close()
