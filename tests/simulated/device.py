"""A CUDA device in place of ``torch.cuda``, on a clock that only it and the host's work move.

Launches return at once until the queue is full, as CUDA's do, and are worked off in order;
``synchronize`` waits for the last. It is a simulation by events instead of a thread that sleeps, so
what the probe ought to measure is known to the nanosecond, however busy the machine is.
"""

from __future__ import annotations

import sys
import time
import warnings
from collections import deque
from types import SimpleNamespace

import pytest
import torch

DEPTH = 1024  # launches that CUDA queues before a further one blocks
LAUNCH_NS = 5_000  # what a launch takes on the host


class SimulatedCuda:
    """``now``: the clock, ns. ``queue``: when each launch ends that has not ended. ``busy``: ns of
    work done and queued."""

    def __init__(self, launch_ns: int = LAUNCH_NS, depth: int = DEPTH) -> None:
        self.launch_ns, self.depth = launch_ns, depth
        self.now = 10**9
        self.queue: deque[int] = deque()
        self.busy = 0
        self.capturing = False
        self.captured = 0  # ns of work launched into the graph that is being captured
        self.sync_debug_mode: int | str = 0
        self.warned = False
        self.synchronised: list[int] = []  # when the host had waited for all

    def host(self, ns: int) -> None:
        """The host works (Python, a loader)."""
        self.now += ns

    def launch(self, work_ns: int) -> None:
        if self.capturing:
            self.captured += work_ns
            return
        self.host(self.launch_ns)
        self._retire()
        if len(self.queue) >= self.depth:
            self.now = self.queue[0]
            self._retire()
        began = max(self.now, self.queue[-1]) if self.queue else self.now
        self.queue.append(began + work_ns)
        self.busy += work_ns

    def synchronize(self, device: object = None) -> None:
        assert not self.capturing, "operation not permitted when stream is capturing"
        if self.queue:
            self.now = max(self.now, self.queue[-1])
        self._retire()
        self.synchronised.append(self.now)

    def set_sync_debug_mode(self, mode: int | str) -> None:
        """Warns as torch does, at the first change of a process."""
        if not self.warned:
            self.warned = True
            warnings.warn(
                "Synchronization debug mode is a prototype feature and does not yet detect all"
                " synchronizing operations",
                UserWarning,
                stacklevel=2,
            )
        self.sync_debug_mode = {"default": 0, "warn": 1, "error": 2}.get(str(mode), mode)

    def item(self) -> None:
        """``loss.item()``: a synchronisation that the script did not ask for by name."""
        mode = self.sync_debug_mode
        if mode == 2:
            raise RuntimeError("called a synchronizing CUDA operation")
        if mode == 1:
            warnings.warn("called a synchronizing CUDA operation", UserWarning, stacklevel=2)
        self.synchronize()

    def _retire(self) -> None:
        while self.queue and self.queue[0] <= self.now:
            self.queue.popleft()

    def graph(self) -> type:
        """``torch.cuda.CUDAGraph``: what is launched while it is captured is launched again by
        ``replay``, in one launch of the host's."""
        cuda = self

        class CUDAGraph:
            def capture_begin(self) -> None:
                cuda.capturing = True
                cuda.captured = 0

            def capture_end(self) -> None:
                cuda.capturing = False
                self.work_ns = cuda.captured

            def replay(self) -> None:
                cuda.launch(self.work_ns)

        return CUDAGraph

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """In place of ``torch.cuda`` and of the clock, in this process."""
        about = SimpleNamespace(uuid="11111111-2222-3333-4444-555555555555", total_memory=80 << 30)
        for name, value in {
            "is_initialized": lambda: True,
            "is_available": lambda: True,
            "device_count": lambda: 1,
            "current_device": lambda: 0,
            "get_device_name": lambda number=0: "Simulated",
            "get_device_properties": lambda number=0: about,
            "is_current_stream_capturing": lambda: self.capturing,
            "memory_allocated": lambda: 1 << 20,
            "max_memory_allocated": lambda: 2 << 20,
            "max_memory_reserved": lambda: 3 << 20,
            "synchronize": self.synchronize,
            "CUDAGraph": self.graph(),
            "get_sync_debug_mode": lambda: self.sync_debug_mode,
            "set_sync_debug_mode": self.set_sync_debug_mode,
        }.items():
            monkeypatch.setattr(torch.cuda, name, value)
        monkeypatch.setattr(time, "perf_counter_ns", lambda: self.now)
        for name, module in list(sys.modules.items()):
            if name.startswith("tdiag.probe.") and hasattr(module, "wall_ns"):
                monkeypatch.setattr(module, "wall_ns", lambda: self.now)
