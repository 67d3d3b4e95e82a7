"""NVML's values as they are, None for what a device does not give, and why there is none."""

from __future__ import annotations

import os
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from tdiag.sample.gpu import Gpus


class NVMLError(Exception):
    pass


class FakeNvml(ModuleType):
    """Two devices, both ``names[0]`` unless there are two names; the second one gives no
    clock. ``refused``: those of other jobs; ``divided``: those whose instances are handed out."""

    NVMLError = NVMLError

    def __init__(self) -> None:
        super().__init__("pynvml")
        self.reasons = 0x24
        self.open = False
        self.names = ["NVIDIA Test"]
        self.refused: set[int] = set()
        self.divided: set[int] = set()
        self.uses: list[tuple[int, int, int]] = []  # process, its use in %, µs after the last one
        self.near = (1 << 64) - 1

    def nvmlInit(self) -> None:
        self.open = True

    def nvmlShutdown(self) -> None:
        self.open = False

    def nvmlDeviceGetCount(self) -> int:
        return 2

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        if index in self.refused:
            raise NVMLError("Insufficient Permissions")
        return index

    def nvmlDeviceGetMigMode(self, handle: int) -> list[int]:
        return [1, 1] if handle in self.divided else [0, 0]

    def nvmlDeviceGetMaxMigDeviceCount(self, handle: int) -> int:
        return 7

    def nvmlDeviceGetMigDeviceHandleByIndex(self, handle: int, number: int) -> int:
        if number > 1:
            raise NVMLError("Not Found")
        return 10 * (handle + 1) + number

    def nvmlDeviceGetName(self, handle: int) -> bytes:
        return self.names[handle % len(self.names)].encode()

    def nvmlDeviceGetUUID(self, handle: int) -> str:
        return f"GPU-{handle}abc" if handle < 10 else f"MIG-{handle}abc"

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

    def nvmlDeviceGetProcessUtilization(self, handle: int, since_us: int) -> list[Any]:
        if handle or not self.uses:
            raise NVMLError("Not Found")
        return [
            SimpleNamespace(pid=pid, smUtil=used, timeStamp=since_us + after)
            for pid, used, after in self.uses
        ]

    def nvmlDeviceGetCpuAffinity(self, handle: int, words: int) -> list[int]:
        return [self.near] * words

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
        "sm_max_mhz": 1980, "cpus_near": None,
    }  # fmt: skip
    assert sample[0] == {
        "index": 0, "util": 0.37, "memory_used": 10, "sm_mhz": 1200,
        "throttle": ["power cap", "thermal (software)"], "processes": None,
    }  # fmt: skip
    assert sample[1]["sm_mhz"] is None
    gpus.close()
    assert not nvml.open and gpus.sample() is None


def test_use_by_process_without_the_drivers_stale_and_absurd_entries(nvml: FakeNvml) -> None:
    me = os.getpid()
    nvml.uses = [(me, 40, 1), (me, 60, 2), (me, 90, 0), (4_000_000, 30, 3), (7, 4_294_967_295, 3)]
    sample = Gpus().sample()
    assert sample is not None
    seen = sample[0]["processes"]
    assert seen.keys() == {str(me), "4000000"}
    assert seen[str(me)][0] == 0.5 and seen[str(me)][1]
    assert seen["4000000"] == [0.3, None]
    assert sample[1]["processes"] is None


def test_the_cpus_of_the_devices_node(nvml: FakeNvml, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("psutil.cpu_count", lambda: 80)
    nvml.near = 0b1011
    described = Gpus().describe()
    assert described is not None and described[0]["cpus_near"] == [0, 1, 3, 64, 65, 67]
    monkeypatch.setattr("psutil.cpu_count", lambda: 2)
    described = Gpus().describe()
    assert described is not None and described[0]["cpus_near"] is None  # one node


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


def watched(gpus: Gpus) -> list[str]:
    return [gpu["uuid"] for gpu in gpus.describe() or []]


@pytest.mark.parametrize("refused", [{0}, {1}, {0, 1}])
def test_a_device_of_another_job_does_not_hide_the_others(
    refused: set[int], nvml: FakeNvml
) -> None:
    nvml.refused = refused
    gpus = Gpus()
    assert watched(gpus) == [f"GPU-{n}abc" for n in (0, 1) if n not in refused]
    assert gpus.missing == ("NVML: Insufficient Permissions" if len(refused) == 2 else "")


def test_numbers_count_the_devices_that_the_job_may_use(
    nvml: FakeNvml, monkeypatch: pytest.MonkeyPatch
) -> None:
    nvml.refused = {0}
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    assert watched(Gpus()) == ["GPU-1abc"]


def test_of_different_devices_a_number_may_mean_any(
    nvml: FakeNvml, monkeypatch: pytest.MonkeyPatch
) -> None:
    """CUDA puts the fastest first: the uuid that the probe reports tells which it is."""
    nvml.names = ["NVIDIA Slow", "NVIDIA Fast"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    assert watched(Gpus()) == ["GPU-0abc", "GPU-1abc"]
    monkeypatch.setenv("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
    assert watched(Gpus()) == ["GPU-0abc"]


@pytest.mark.parametrize(
    ("visible", "seen"), [("-1", []), ("1,-1,0", [1]), ("NoDevFiles", []), ("7", [])]
)
def test_cuda_reads_no_further_than_the_first_that_is_not_there(
    visible: str, seen: list[int], nvml: FakeNvml, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert watched(Gpus()) == [f"GPU-{n}abc" for n in seen]


def test_an_instance_of_a_divided_device_is_watched_with_the_clocks_of_the_whole(
    nvml: FakeNvml, monkeypatch: pytest.MonkeyPatch
) -> None:
    nvml.divided = {0}
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "MIG-11")
    gpus = Gpus()
    assert watched(gpus) == ["MIG-11abc"]
    sample = (gpus.sample() or [])[0]
    assert sample["memory_used"] == 10 + 11 and sample["sm_mhz"] == 1200
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    indices = [gpu["index"] for gpu in Gpus().sample() or []]
    assert len(indices) == len(set(indices)) == 3
