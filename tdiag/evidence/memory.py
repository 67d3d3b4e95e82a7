"""Memory of the device, and tensors that outlive their step."""

from __future__ import annotations

from tdiag.model.kind import Kind
from tdiag.model.place import Place


class DeviceMemory(Kind, frozen=True, kw_only=True):
    """Torch's caching allocator on the device of the judged process, bytes, without other programs
    on that device. For a run: the maximum until the last window began. For a bare trace
    (``profile_memory``): the maximum in its steps, on the most used device.

    ``capacity_bytes``: total memory of the device; None if unknown.
    """

    peak_allocated_bytes: int
    peak_reserved_bytes: int
    capacity_bytes: int | None


class AllocatorCalls(Kind, frozen=True, kw_only=True):
    """Calls that allocate or free device memory (cudaMalloc, cudaFree, hipMalloc, …; not those for
    pinned host memory), per traced step. ``retries``: allocations right after another allocation
    and a freeing of memory, with no launch between them: the first attempt had failed."""

    mallocs: float
    frees: float
    retries: float
    host_ns: float


class Kept(Kind, frozen=True, kw_only=True):
    """Tensors created at this line that outlive their step. Per step."""

    at: Place | None
    tensors: float
    bytes: float
    graphs: float  # of them, those that hold the autograd graph that made them


class GrowingGraph(Kind, frozen=True, kw_only=True):
    """Tensors from this line hold the graphs of more and more steps (a sum of losses that were not
    detached): lower bound of the nodes that their graph gains per step."""

    at: Place | None
    nodes: float


class MemoryGrowth(Kind, frozen=True, kw_only=True):
    """Tensors made in one or two counted steps and still alive ``since_steps`` steps later, most
    bytes first. ``bytes_per_step``: of all of them. ``device``: growth of the device's allocated
    memory over the clean window, bytes per step; None without a device."""

    kept: tuple[Kept, ...]
    bytes_per_step: float
    since_steps: int
    graphs: tuple[GrowingGraph, ...] = ()
    device_bytes_per_step: float | None = None
