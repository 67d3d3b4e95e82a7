"""The device in the traced steps, per step. Times are in ns.

Times of device activity are unions of intervals, never sums of overlapping ones.
"""

from __future__ import annotations

import msgspec

from tdiag.model.kind import Kind
from tdiag.model.place import Place

# The beginning of the reason why DeviceTime is missing, if the profiler itself gave one.
FAULT = "Kineto: "


class Device(Kind, frozen=True, kw_only=True):
    """The device on which the judged process computed; absent on a CPU, and if a trace shows no
    device.

    ``kind``: ``cuda`` (also ROCm), ``xpu``, ``mtia``, ``hpu``, ``npu``, ``mps``; empty if a trace
    does not show it. ``capability``: CUDA's compute capability, (major, minor); None if no trace
    has it.
    """

    kind: str
    name: str
    capability: tuple[int, int] | None = None
    memory_bytes: int | None = None


# Device activity counts as traced, because the profiler slows the host but not the device.
DEVICE_BUSY = ("compute", "comm", "h2d", "d2h")
# Host phases that a trace of a few steps easily misses: taken whole from the clean window, with the
# device work that they cause.
BETWEEN_STEPS = ("evaluation", "checkpoint", "gc")


class DeviceTime(Kind, frozen=True, kw_only=True):
    """Where the traced step's time went, ns per step; the components add up to ``step_ns``.

    An instant is ``compute`` if a compute kernel runs; else ``comm``; else ``h2d`` / ``d2h``
    (device-side copies count as compute). If the device is idle, it belongs to what the host did:
    ``data_wait``, ``sync``, ``alloc``, ``python_loss``, ``evaluation``, ``optimizer``, ``prepare``
    (making a batch without a DataLoader), ``cpu_ops`` (ops that compute on the host), ``launch``
    (issuing work), ``other``. A wait (``sync``, ``data_wait``) is also charged with the idle gaps
    after it, up to the lead over the device that it cost the host. ``unattributed``: idle time in a
    sampled trace.
    """

    step_ns: float
    components_ns: dict[str, float]
    busy_frac: float  # union of everything that runs on the device ÷ step
    kernels_per_step: float
    mean_kernel_ns: float
    # Idle time before kernels that start as soon as they are launched, between ordinary launches:
    # an interval over ten times as long as the usual one between launches has another cause.
    launch_starved_ns: float
    streams: int
    # Host time in each of these states, whether the device was busy or not, ns per step.
    host_ns: dict[str, float] = msgspec.field(default_factory=dict)
    # Amount of issued and unfinished work when a call issued more: the median; None if no launches
    # were traced. 0: the host issues work one piece at a time.
    queue_depth: float | None = None
    # Calls that allocate or free memory (cudaMalloc, …); None if no runtime calls were traced.
    allocations_per_step: float | None = None


MEMORIES = ("pageable", "pinned", "unknown")


class Copy(Kind, frozen=True, kw_only=True):
    """Copies of one direction and kind, per step."""

    direction: str  # "h2d", "d2h"
    memory: str  # one of MEMORIES: what the host's side of it lies in
    count: float
    bytes: float | None
    device_ns: float  # union
    exposed_ns: float  # not overlapped by compute
    host_blocked_ns: float  # host inside the copy call
    at: Place | None


class Transfers(Kind, frozen=True, kw_only=True):
    """Absent if no device was traced; empty if one was and nothing was copied."""

    copies: tuple[Copy, ...]


class Sync(Kind, frozen=True, kw_only=True):
    """Synchronisations of one kind, per step.

    ``idle_after_ns``: device idle time that they caused, while the host waited and in the gaps that
    follow, at most the lead over the device that the waiting cost the host. The runtime calls add
    up to the budget's ``sync``; ``aten::item`` repeats those of its own calls.

    ``op``: the outermost and the innermost op around it ("aten::to > aten::copy_"), "" for none.
    ``within``: the user's innermost annotation around it (``record_function``), "" for none.
    """

    name: str  # "cudaStreamSynchronize", "aten::item", …
    count: float
    host_ns: float
    idle_after_ns: float
    at: Place | None
    op: str = ""
    within: str = ""


class Syncs(Kind, frozen=True, kw_only=True):
    syncs: tuple[Sync, ...]


class SyncLine(Kind, frozen=True, kw_only=True):
    """One user line that made the host wait for the device."""

    at: Place
    per_step: float


class SyncLines(Kind, frozen=True, kw_only=True):
    """Device synchronisations by user line, window ``ops``, CUDA only: implicit ones
    (``torch.cuda.set_sync_debug_mode``), and in ``asked`` calls of ``synchronize``."""

    lines: tuple[SyncLine, ...]
    asked: tuple[SyncLine, ...] = ()


class KernelFamily(Kind, frozen=True, kw_only=True):
    """family: gemm, conv, attention, elementwise, reduction, copy, optimizer, norm, comm, other.
    ``occupancy_frac``: the profiler's estimate, 0..1, time-weighted mean over the kernels that have
    one; None if none has."""

    family: str
    count: float
    device_ns: float
    float32_ns: float  # where the name or the shapes show the dtype
    tensor_core_ns: float | None
    occupancy_frac: float | None = None


# Families that compute; copies do not.
COMPUTE_FAMILIES = (
    "attention", "optimizer", "layout", "conv", "gemm", "norm", "reduction", "elementwise", "other",
)  # fmt: skip


class Chains(Kind, frozen=True, kw_only=True):
    """Element-wise kernels that follow one another in a stream, with nothing but copies between
    them, and were not launched by the optimizer. ``device_ns``: their time, per step;
    ``longest_ns``: of it, the longest kernel of each chain."""

    kernels: float
    device_ns: float
    longest_ns: float


class Kernels(Kind, frozen=True, kw_only=True):
    """``count``: only kernels; the families also contain device-side copies and memsets."""

    families: tuple[KernelFamily, ...]
    count: float
    device_ns: float
    chains: Chains | None = None


class DevicePart(Kind, frozen=True, kw_only=True):
    """Kernels, copies and memsets of one origin, per step. ``device_ns``: the sum of their
    durations; concurrent parts overlap."""

    name: str
    count: float
    device_ns: float
    at: Place | None = None


class DeviceParts(Kind, frozen=True, kw_only=True):
    """Device work by origin, largest first (the first 1,000 of each).

    ``kernels``: by their own name; ``ops``: by the innermost op that launched them; ``modules``:
    by the innermost ``nn.Module`` (forward only); ``functions``: by the user's innermost function
    (forward only). Empty if the trace does not show it; work without an origin is left out.
    """

    kernels: tuple[DevicePart, ...]
    ops: tuple[DevicePart, ...]
    modules: tuple[DevicePart, ...]
    functions: tuple[DevicePart, ...]


class HeldDown(Kind, frozen=True, kw_only=True):
    """A reason that reduced the clocks. ``frac``: share of the samples; ``sm_mhz``: the processors'
    mean clock in these samples, None: unknown."""

    reason: str
    frac: float
    sm_mhz: float | None = None


class DeviceClocks(Kind, frozen=True, kw_only=True):
    """What NVML reported about the most used device in the clean window. ``held_down``: all reasons
    that reduced the clocks, the most frequent first; a sample may have several. ``sm_max_mhz``: the
    processors' highest clock, None: unknown."""

    samples: int
    held_down: tuple[HeldDown, ...]
    sm_max_mhz: int | None = None


class DeviceUser(Kind, frozen=True, kw_only=True):
    """Another program's process on the device. ``frac``: its use of the device's processors, 0..1,
    mean of the samples."""

    pid: int
    name: str
    frac: float


class DeviceUsers(Kind, frozen=True, kw_only=True):
    """Who used the device in the clean window (NVML). ``own_frac``: the run's own processes, as
    above; ``others``: all others, the busiest first. Absent if the driver reports no use by
    process, or numbers processes differently (in a container)."""

    samples: int
    own_frac: float
    others: tuple[DeviceUser, ...] = ()


class IdleDevices(Kind, frozen=True, kw_only=True):
    """``count``: devices that the program may use and that no kernel ran on in any of the samples,
    while it used another one; at least 1."""

    count: int
    samples: int


class DeviceNearness(Kind, frozen=True, kw_only=True):
    """Where the training thread ran: ``near_frac``: share of the samples on a CPU of the device's
    own NUMA node (``cpus_near``). Absent on a machine with one node."""

    samples: int
    near_frac: float
    cpus_near: tuple[int, ...]
