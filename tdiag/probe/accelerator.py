"""The accelerator that this process computes on: what it is, and what can be read from it.

Nothing here starts one. ``is_available`` counts devices, which starts CUDA's driver, and then the
children that the process forks cannot use CUDA; so ``is_initialized`` is called first.
``torch.accelerator`` has no such function and came with torch 2.6; each kind's own module has had
all of these since 2.1.

CUDA, and ROCm under the same name, are measured fully. For other kinds (XPU, MTIA, HPU, NPU, MPS,
third-party backends) only what they offer is read; the rest is None, not zero.
"""

from __future__ import annotations

import os
import re
from typing import Any

import torch

from .core import now_ns

# The kinds that torch or another package registers as a module ``torch.<kind>``.
_KINDS = ("cuda", "xpu", "mtia", "hpu", "npu")
# On another kind, reading a tensor's values may compile and run all pending work.
READABLE = ("cpu", "cuda", "xpu")
_ACTIVITIES = {"cuda": "CUDA", "xpu": "XPU", "mtia": "MTIA", "hpu": "HPU"}

_any_autocast = getattr(torch._C, "_is_any_autocast_enabled", lambda: False)
_backend_name = getattr(torch._C, "_get_privateuse1_backend_name", lambda: "")
# Files of the drivers of NVIDIA (Linux and WSL) and AMD.
_DRIVERS = ("/dev/nvidiactl", "/dev/dxg", "/dev/kfd")


def kind() -> str:
    """``cuda``, ``xpu``, …: the kind that this process has initialised; empty if none."""
    return _used()[0]


def cuda_possible() -> bool:
    """Whether this torch can compute on CUDA or ROCm, and this machine has a driver for it."""
    built = torch.version.cuda or getattr(torch.version, "hip", None)
    return bool(built) and any(map(os.path.exists, _DRIVERS))


def synchronised() -> int:
    """Wait until all launched work is done; returns the time when it was (ns), 0 without a device.

    Does not wait while a CUDA graph is being captured, because that would break the capture.
    """
    name, module = _used()
    if not name or capturing():
        return 0
    try:
        for number in _others(name, module):
            module.synchronize(number)
        module.synchronize()
    except Exception:  # a fault of the user's own kernels; their next call raises it, too
        return 0
    return now_ns()


def capturing() -> bool:
    """Whether calls on this thread go into a CUDA graph instead of to the device."""
    name, _ = _used()
    return name == "cuda" and bool(torch.cuda.is_current_stream_capturing())


def memory() -> dict[str, int | None]:
    """Bytes of torch's allocator on the current device, without other processes: `allocated` now,
    `peak` allocated and `reserved` (the most it has held of the device) since the program began or
    last reset them. None: no device, or not reported."""
    _, module = _used()
    return {
        "allocated": _read(module, "memory_allocated", "current_allocated_memory"),
        "peak": _read(module, "max_memory_allocated"),
        "reserved": _read(module, "max_memory_reserved"),
    }


def activity() -> Any:
    """The profiler's activity that traces this device; None if there is none, or if torch's
    profiler cannot trace it (NPU and HPU have their own profilers)."""
    name, _ = _used()
    if not name:
        return None
    wanted = getattr(torch.profiler.ProfilerActivity, _ACTIVITIES.get(name, "PrivateUse1"), None)
    return wanted if wanted in torch.profiler.supported_activities() else None


def names() -> list[str]:
    """Names of all devices that the program may use."""
    _, module = _used()
    count = _read(module, "device_count") or 0
    found = (_ask(module, "get_device_name", number) for number in range(count))
    return [str(name) for name in found if name]


def describe() -> dict[str, Any] | None:
    """The device that this process computes on: `kind`, `index` (among those it may use), `name`,
    `uuid` (without its GPU or MIG prefix), `memory` (bytes); None without one."""
    name, module = _used()
    if not name:
        return None
    index = _read(module, "current_device")
    about = _ask(module, "get_device_properties", index)
    uuid, size = getattr(about, "uuid", None), getattr(about, "total_memory", None)
    return {
        "kind": name,
        "index": index,
        "name": str(_ask(module, "get_device_name", index) or ""),
        "uuid": None if uuid is None else re.sub("^(GPU|MIG)-", "", str(uuid)),
        "memory": size if isinstance(size, int) else None,
    }


def autocast() -> str:
    """The dtype of the active autocast region of this thread, or empty."""
    if not _any_autocast():
        return ""
    get = getattr(torch, "get_autocast_dtype", None)
    if get is None:  # before torch 2.4
        return "on"
    where = [name for name in (kind() or "cuda", "cpu") if autocast_enabled(name)]
    return str(get(where[0])) if where else "on"


def autocast_enabled(device: str) -> bool:
    """Whether this thread is in an autocast region for this kind of device."""
    if hasattr(torch, "get_autocast_dtype"):
        return torch.is_autocast_enabled(device)
    return torch.is_autocast_cpu_enabled() if device == "cpu" else torch.is_autocast_enabled()


def _used() -> tuple[str, Any]:
    """The kind in use, and its module."""
    for name in (*_KINDS, _backend_name()):
        module = getattr(torch, name, None) if name else None
        initialized = getattr(module, "is_initialized", None)
        if initialized is not None and initialized():
            return name, module
    # Metal needs no initialisation, and macOS starts children as new programs.
    metal = torch.backends.mps.is_built() and torch.backends.mps.is_available()
    if metal and torch.mps.current_allocated_memory():
        return "mps", torch.mps
    return "", None


def _others(name: str, module: Any) -> list[int]:
    """Further CUDA devices that this process uses; no context is created on any other."""
    used = getattr(torch._C, "_cuda_hasPrimaryContext", None)
    if name != "cuda" or used is None:
        return []
    current = module.current_device()
    return [n for n in range(module.device_count()) if n != current and used(n)]


def _read(module: Any, *calls: str) -> int | None:
    """The number returned by the first of these functions that the module has."""
    for call in calls:
        value = _ask(module, call)
        if isinstance(value, int):
            return value
    return None


def _ask(module: Any, call: str, *args: Any) -> Any:
    function = getattr(module, call, None)
    if function is None:
        return None
    try:
        return function(*args)
    except Exception:  # not implemented by this backend
        return None
