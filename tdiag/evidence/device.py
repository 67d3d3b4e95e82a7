"""Device-side and trace-derived facts, per step of the traced steps. Times are ns.

All times of device activity are unions of intervals, never sums of overlapping ones.
Rules read these exactly as the host kinds; a bare trace gives only these.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from tdiag.model.kind import Kind
from tdiag.model.place import Place


class TracedSteps(Kind, frozen=True, kw_only=True):
    """The steps a trace covers. ``found_by``: ``ProfilerStep``, ``loader``, ``optimizer`` or
    ``span`` (no iterations found: everything is one step)."""

    durations_ns: tuple[int, ...]
    mean_ns: int
    count: int
    found_by: str
    sampled: bool = False  # the file holds only a sample of the events: gaps tell nothing


class DeviceTime(Kind, frozen=True, kw_only=True):
    """Where the traced step's time went, ns per step; the components add up to ``step_ns``.

    An instant is ``compute`` if a compute kernel runs; else ``comm``; else ``h2d`` / ``d2h``
    (device-side copies count as compute). With the device idle it belongs to what the host did:
    ``data_wait``, ``sync``, ``alloc``, ``python_loss``, ``evaluation``, ``optimizer``,
    ``launch`` (issuing work), ``other``. A wait (``sync``, ``data_wait``) also has the idle gaps
    that follow it for as long as the lead that it cost the host explains. ``unattributed``: idle
    in a sampled trace.
    """

    step_ns: float
    components_ns: dict[str, float]
    busy_frac: float  # union of everything that runs on the device ÷ step
    kernels_per_step: float
    mean_kernel_ns: float
    launch_starved_ns: float  # idle before kernels that start as soon as they are launched
    streams: int
    # Host time in each of these states, whether the device was busy or not, ns per step.
    host_ns: dict[str, float] = msgspec.field(default_factory=dict)
    # Work that was issued before and not yet done when a call issued more: the median; None where
    # no launches were traced. 0: the host hands out work one by one.
    queue_depth: float | None = None
    # Calls that allocate or free memory (cudaMalloc, …); None where no runtime calls were traced.
    allocations_per_step: float | None = None


class Copy(Kind, frozen=True, kw_only=True):
    """Copies of one direction and kind, per step."""

    direction: str  # "h2d", "d2h"
    memory: str  # "pageable", "pinned", "unknown"
    count: float
    bytes: float | None
    device_ns: float  # union
    exposed_ns: float  # not overlapped by compute
    host_blocked_ns: float  # host inside the copy call
    at: Place | None


class Transfers(Kind, frozen=True, kw_only=True):
    """Absent where no device was traced; empty where one was and nothing was copied."""

    copies: tuple[Copy, ...]


class Sync(Kind, frozen=True, kw_only=True):
    """Synchronisations of one kind, per step.

    ``idle_after_ns``: device idle that they caused, while the host waited and in the gaps that
    follow, no longer than the lead over the device that the waiting cost the host. The runtime
    calls add up to the budget's ``sync``; ``aten::item`` repeats those of its own calls.
    """

    name: str  # "cudaStreamSynchronize", "aten::item", …
    count: float
    host_ns: float
    idle_after_ns: float
    at: Place | None


class Syncs(Kind, frozen=True, kw_only=True):
    syncs: tuple[Sync, ...]


class KernelFamily(Kind, frozen=True, kw_only=True):
    """family: gemm, conv, attention, elementwise, reduction, copy, optimizer, norm, comm, other.
    ``occupancy_frac``: the profiler's estimate, 0..1, mean over the time of the kernels that have
    one; None where none has."""

    family: str
    count: float
    device_ns: float
    float32_ns: float  # where name or shapes tell the dtype
    tensor_core_ns: float | None
    occupancy_frac: float | None = None


class Kernels(Kind, frozen=True, kw_only=True):
    """``count``: kernels alone; the families hold device-side copies and memsets, too."""

    families: tuple[KernelFamily, ...]
    count: float
    device_ns: float


class HostOp(Kind, frozen=True, kw_only=True):
    """One op name, per step. ``self_ns`` excludes children."""

    name: str
    count: float
    self_ns: float
    total_ns: float


class HostOps(Kind, frozen=True, kw_only=True):
    """Ops the host dispatched in the traced steps (profiler overhead included in times)."""

    per_step: float  # outermost ops (those called from Python or the autograd engine)
    total_per_step: float  # nested ones counted too
    ops: tuple[HostOp, ...]  # largest self time first
    backward_of: dict[str, float]  # ns of backward per phase that issued the forward op
    # Of a phase's time, 0..1, in ``Optimizer.zero_grad``.
    zero_grad_frac: dict[str, float] = msgspec.field(default_factory=dict)
    # What fills with zeros there, all such ops as one: none of them where the gradients are set to
    # None. None where no ``Optimizer.zero_grad`` was seen.
    zeroing: HostOp | None = None


class Communication(Kind, frozen=True, kw_only=True):
    """``collectives``: each in turn, ``(end_ns, exposed_ns)``: when it ended, on the trace's clock,
    and how much of it ran with no compute beside it. Empty where there were more than 10,000."""

    total_ns: float
    exposed_ns: float
    count: float
    collectives: tuple[tuple[int, int], ...] = ()


class Part(Kind, frozen=True, kw_only=True):
    """Kernels, copies and memsets of one origin, per step. ``device_ns`` is the sum of their
    durations: parts that ran at once overlap."""

    name: str
    count: float
    device_ns: float
    at: Place | None = None


class DeviceParts(Kind, frozen=True, kw_only=True):
    """Device work by where it came from, largest first (the first 1,000 of each).

    ``kernels``: by their own name; ``ops``: by the innermost op that launched them; ``modules``:
    by the innermost ``nn.Module`` (forward only); ``functions``: by the user's innermost function
    (forward only). Empty where the trace does not tell; what has no origin is left out.
    """

    kernels: tuple[Part, ...]
    ops: tuple[Part, ...]
    modules: tuple[Part, ...]
    functions: tuple[Part, ...]


class MatrixOp(Kind, frozen=True, kw_only=True):
    """One matrix product, convolution or attention of one shape, per step. ``dims`` and
    ``dtypes``: of its tensor inputs, as recorded ("float", "c10::BFloat16", "double" …)."""

    name: str
    dims: tuple[tuple[int, ...], ...]
    dtypes: tuple[str, ...]
    count: float
    host_ns: float
    device_ns: float | None  # of the kernels it launched itself; None without a traced device


class MatrixOps(Kind, frozen=True, kw_only=True):
    """Absent where the trace holds no shapes."""

    ops: tuple[MatrixOp, ...]


class DeviceMemory(Kind, frozen=True, kw_only=True):
    """The caching allocator of the device most used, in the traced steps (``profile_memory``)."""

    peak_allocated_bytes: int
    peak_reserved_bytes: int
    capacity_bytes: int | None


class RankTime(Kind, frozen=True, kw_only=True):
    """One rank's step. ``components_ns`` as in DeviceTime, empty where its trace holds no device
    activity; ``communication_ns``: union of its communication, None where unmeasured. Of a run on
    the CPU: phases of its clean steps, and what it waits for the last rank (``comm``)."""

    rank: int
    step_ns: float
    components_ns: dict[str, float]
    communication_ns: float | None


class Ranks(Kind, frozen=True, kw_only=True):
    """Every rank of one job that was traced or, on a CPU (``source`` baseline), timed, by rank.

    A collective ends for all ranks at once, so the rank that the others wait for communicates
    the *least*. ``slowest``: that rank; ``waited_ns``: the median of the others' communication
    beyond its own, per step, which is what they wait for it. None with fewer than two ranks whose
    communication was measured.

    ``shortest_ns``: exposed communication per step, of each collective that of the rank where it
    was shortest, which came last to it: what is left if all ranks arrive together. ``by_turns_ns``:
    the ranks' mean wait for whichever came last, per step, beyond that for the rank that is late on
    the whole. None where the ranks' collectives could not be paired.
    """

    ranks: tuple[RankTime, ...]
    slowest: int | None
    waited_ns: float | None
    shortest_ns: float | None = None
    by_turns_ns: float | None = None
    source: Literal["trace", "baseline"] = "trace"
