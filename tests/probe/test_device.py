"""What the probe asks of a device, and of which: nothing of one that the script has not started."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tdiag.probe import accelerator

from .harness import watch_code

ASKED = """
import sys, torch
asked = []
def is_available():
    frame, files = sys._getframe(1), []
    while frame is not None:
        files.append(frame.f_code.co_filename)
        frame = frame.f_back
    asked.extend(name.rsplit("/", 1)[-1] for name in files[:2] if "/tdiag/probe/" in name)
    return False
torch.cuda.is_available = torch._C._cuda_getDeviceCount = is_available
model = torch.nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(200):
    optimizer.zero_grad()
    model(torch.randn(8, 8)).mean().backward()
    optimizer.step()
print(asked)
"""


def test_a_driver_that_the_script_has_not_started_is_not_asked(tmp_path: Path) -> None:
    """``is_available`` starts CUDA's driver; children forked afterwards cannot use it."""
    run = watch_code(tmp_path, ASKED)
    assert run.out == "[]\n", run.err
    assert {"trace", "ops"} <= {r["name"] for r in run.of("window") if r["state"] == "end"}
    assert run.of("torch")[0]["device"] is None


class Backend(SimpleNamespace):
    """A module ``torch.<kind>``: started, and with the functions it is given."""

    def __init__(self, **functions: Any) -> None:
        super().__init__(is_initialized=lambda: True, **functions)


@pytest.mark.parametrize("kind", ["xpu", "mtia", "hpu", "npu"])
def test_other_kinds_are_recognised_waited_for_and_their_memory_is_read(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    waited: list[bool] = []
    backend = Backend(
        synchronize=lambda: waited.append(True), memory_allocated=lambda: 7,
        max_memory_allocated=lambda: 9, device_count=lambda: 1, current_device=lambda: 0,
        get_device_name=lambda number: f"{kind} {number}",
    )  # fmt: skip
    monkeypatch.setattr(torch, kind, backend, raising=False)
    assert accelerator.kind() == kind
    assert accelerator.synchronised() > 0 and waited == [True]
    assert accelerator.memory() == {"allocated": 7, "peak": 9, "reserved": None}
    assert accelerator.names() == [f"{kind} 0"]
    assert accelerator.describe() == {
        "kind": kind, "index": 0, "name": f"{kind} 0", "uuid": None, "memory": None,
    }  # fmt: skip
    assert not accelerator.capturing()
    assert accelerator.activity() is None  # of a torch that was built without it


def test_metal_is_in_use_once_memory_of_it_is_held(monkeypatch: pytest.MonkeyPatch) -> None:
    held = [0]
    monkeypatch.setattr(torch.backends.mps, "is_built", lambda: True)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    metal = SimpleNamespace(
        current_allocated_memory=lambda: held[0], synchronize=lambda: None, device_count=lambda: 1
    )
    monkeypatch.setattr(torch, "mps", metal)
    assert accelerator.kind() == ""
    held[0] = 5
    assert accelerator.kind() == "mps"
    assert accelerator.memory() == {"allocated": 5, "peak": None, "reserved": None}
    assert accelerator.synchronised() > 0


def test_what_a_backend_does_not_implement_is_not_known(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: Any) -> Any:
        raise NotImplementedError

    monkeypatch.setattr(torch, "npu", Backend(synchronize=refuse, memory_allocated=refuse),
                        raising=False)  # fmt: skip
    assert accelerator.kind() == "npu"
    assert accelerator.synchronised() == 0
    assert set(accelerator.memory().values()) == {None}
    assert accelerator.names() == []


def test_without_a_device_there_is_nothing() -> None:
    assert (accelerator.kind(), accelerator.synchronised(), accelerator.activity()) == ("", 0, None)
    assert (accelerator.names(), accelerator.describe()) == ([], None)
    assert not accelerator.capturing()


def test_only_devices_that_the_process_uses_are_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Waiting for another would make a context on it, of half a gigabyte."""
    waited: list[int] = []
    cuda = torch.cuda
    for name, value in {
        "is_initialized": lambda: True, "current_device": lambda: 1, "device_count": lambda: 4,
        "is_current_stream_capturing": lambda: False,
        "synchronize": lambda number=1: waited.append(number),
    }.items():  # fmt: skip
        monkeypatch.setattr(cuda, name, value)
    monkeypatch.setattr(torch._C, "_cuda_hasPrimaryContext", lambda n: n in (1, 3), raising=False)
    assert accelerator.synchronised() > 0
    assert sorted(waited) == [1, 3]


@pytest.mark.parametrize("old", [False, True])
def test_whether_autocast_is_on_is_known_of_each_torch(
    old: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before 2.4 there was a function for each device, and none took its name."""
    with torch.autocast("cpu", torch.bfloat16):
        if old:
            monkeypatch.delattr(torch, "get_autocast_dtype")
            monkeypatch.setattr(torch, "is_autocast_cpu_enabled", lambda: True)
            monkeypatch.setattr(torch, "is_autocast_enabled", lambda: False)
        assert accelerator.autocast_enabled("cpu") and not accelerator.autocast_enabled("cuda")


@pytest.mark.parametrize(
    ("built", "driver"), [("12.1", "/dev/null"), ("12.1", "/dev/no"), (None, "/dev/null")]
)
def test_a_build_for_cuda_without_a_driver_has_no_device(
    built: str | None, driver: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.version, "cuda", built)
    monkeypatch.setattr(accelerator, "_DRIVERS", ("/dev/no", driver))
    assert accelerator.cuda_possible() is (built is not None and driver == "/dev/null")
