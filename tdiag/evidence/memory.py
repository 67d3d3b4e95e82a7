"""Memory: of the device, and what outlives its step."""

from __future__ import annotations

from tdiag.model.kind import Kind
from tdiag.model.place import Place


class DeviceMemory(Kind, frozen=True, kw_only=True):
    """Torch's caching allocator on the device of the judged process, bytes; other programs on that
    device are not in it. Of a run: the most until the last window began. Of a bare trace
    (``profile_memory``): the most in its steps, on the device most used.

    ``capacity_bytes``: all that the device has; None where unknown.
    """

    peak_allocated_bytes: int
    peak_reserved_bytes: int
    capacity_bytes: int | None


class AllocatorCalls(Kind, frozen=True, kw_only=True):
    """Calls that allocate or free device memory (cudaMalloc, cudaFree, hipMalloc, …; not those of
    pinned host memory), per traced step. ``retries``: allocations that came right after another
    one and the freeing of memory, with no launch between: the first one had failed."""

    mallocs: float
    frees: float
    retries: float
    host_ns: float


class Kept(Kind, frozen=True, kw_only=True):
    """Tensors made at this line that outlive their step. Per step."""

    at: Place | None
    tensors: float
    bytes: float
    graphs: float  # of them, those that hold the graph of their making


class GrowingGraph(Kind, frozen=True, kw_only=True):
    """What this line makes holds the graphs of more and more steps (a sum of losses that were not
    detached): nodes that its graph gains each step, at least."""

    at: Place | None
    nodes: float


class MemoryGrowth(Kind, frozen=True, kw_only=True):
    """What one or two counted steps made and still lived ``since_steps`` steps later, most bytes
    first. ``bytes_per_step``: of all of them. ``device``: growth of the device's allocated memory
    over the clean window, bytes per step; None without one."""

    kept: tuple[Kept, ...]
    bytes_per_step: float
    since_steps: int
    graphs: tuple[GrowingGraph, ...] = ()
    device_bytes_per_step: float | None = None
