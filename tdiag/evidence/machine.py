"""The machine, the process and its settings."""

from __future__ import annotations

import msgspec

from tdiag.evidence.sampled import Stacks
from tdiag.model.kind import Kind
from tdiag.model.place import Place
from tdiag.model.threshold import Threshold

BUSY_FRAC = Threshold(
    0.25,
    "of a core",
    "By arithmetic: a parallel call ends with its last thread. On a core that others use for a"
    " quarter of the time it takes at most a third longer, so a second thread still makes it"
    " 2 ÷ 1.33 = 1.5 times as fast.",
)


class Busy(Kind, frozen=True, kw_only=True):
    """A process that does not belong to this run. ``cores``: its CPU seconds ÷ wall seconds;
    ``wants``: the same plus the time its threads waited for a core. ``torch``: it has loaded torch;
    None if its memory map may not be read."""

    pid: int
    name: str
    threads: int
    cores: float
    wants: float
    torch: bool | None


class System(Kind, frozen=True, kw_only=True):
    """The machine during the clean window.

    ``cores_allowed``: min(affinity, cgroup quota); may be fractional. ``cores_used``: CPU seconds
    of the whole process tree ÷ wall seconds. ``machine_busy_cores``: the same for all processes.
    ``further_core``: what each core beyond the first adds when all compute at once, as a share of
    one alone, least and most over kinds of work; None if it was not measured after the run.
    """

    cores_allowed: float
    cores_machine: int
    cores_used: float | None
    machine_busy_cores: float | None
    rss_bytes: int | None  # whole tree, peak
    ram_available_bytes: int | None  # lowest seen; the cgroup's limit counts
    training_queued_frac: float | None = None  # share of time the training thread waited for a core
    cores_physical: int | None = None  # of the machine; ``cores_machine`` counts hardware threads
    further_core: tuple[float, float] | None = None
    others: tuple[Busy, ...] = ()  # those wanting half a core or more, most first

    def fitting(self, threads: int) -> int:
        """How many threads of one process have a core each, if it has ``threads`` now: the cores
        that neither its workers nor other programs use. ``threads`` if that was not measured."""
        if self.machine_busy_cores is None:
            return threads
        others = max(0.0, self.machine_busy_cores - threads)
        free = min(self.cores_allowed, self.cores_machine - others)
        return max(1, int(free + BUSY_FRAC))


class Threads(Kind, frozen=True, kw_only=True):
    """Thread settings of the training process and of its workers.

    ``processes``: number of this run's processes training on this machine at the same time, this
    one included; ``together``: sum of their intra-op threads. ``set_at``: the user's last
    ``torch.set_num_threads``. ``pools``: threads that other libraries compute with in the training
    process, by library: ``{"openblas": 8}``."""

    intra_op: int
    inter_op: int
    worker_intra_op: int | None
    omp_num_threads: str  # the environment variable, "" = unset
    processes: int = 1
    together: int = 0
    set_at: Place | None = None
    pools: dict[str, int] = msgspec.field(default_factory=dict)


class DebugVariables(Kind, frozen=True, kw_only=True):
    """Debugging environment variables that are on, by name; ``PYTHONDEVMODE`` also stands for ``-X
    dev``. Absent if they were not checked."""

    values: dict[str, str]


class Environment(Kind, frozen=True, kw_only=True):
    """What ran where; every field is printed at the end of the report."""

    torch: str
    python: str
    device: str  # "cpu" or the device's name, e.g. "NVIDIA H200"
    device_count: int
    tdiag: str
    command: tuple[str, ...]
    script: str
    hostname: str
    platform: str
    rank: int = 0
    world_size: int = 1
    framework: tuple[str, str] | None = None  # package and version that calls the optimizer
    exit_code: int | None = None  # the program's own; None while it runs and for a bare trace


class Startup(Kind, frozen=True, kw_only=True):
    """Time from the start of the program to the end of its first step, ns, once.

    ``parts_ns``, in order of time; parts that were not seen are absent: ``imports`` (before
    torch's), ``import torch``, ``set-up`` (datasets, model; until the first batch is requested),
    ``workers`` (created by the first iterator), ``first batch``, ``first step`` (from its batch to
    its end). ``run_ns``: the whole program's time, None if tdiag ended it. ``stacks``: samples from
    3 s after torch was imported to the first step; None if it took no longer, or was not sampled.
    """

    parts_ns: dict[str, int]
    run_ns: int | None
    stacks: Stacks | None = None

    @property
    def total_ns(self) -> int:
        return sum(self.parts_ns.values())


class Strip(Kind, frozen=True, kw_only=True):
    """One measure in each interval of a :class:`SystemHistory`.

    ``unit``: ``cores``, ``bytes``, ``bytes_per_s`` or ``frac`` (0..1). ``values``: for ``cores``
    and ``bytes_per_s`` the mean of the interval, for the others the reading at its end; None if not
    measured. ``limit``: the maximum possible, None if there is no such bound.
    """

    name: str
    unit: str
    values: tuple[float | None, ...]
    limit: float | None = None


class SystemHistory(Kind, frozen=True, kw_only=True):
    """The samples of ``system.jsonl``, first to last.

    ``t_ns``: times of the samples, ns on the events' clock. They bound the intervals, one fewer.
    ``no_gpu``: why no GPU was watched, "" if one was.
    """

    t_ns: tuple[int, ...]
    strips: tuple[Strip, ...]
    no_gpu: str = ""


class SyscallRow(Kind, frozen=True, kw_only=True):
    """One system call, per step. ``ns``: wall time inside it, summed over all threads."""

    name: str
    calls: float
    errors: float
    ns: float


class Syscalls(Kind, frozen=True, kw_only=True):
    """``strace -f -c -w`` of the training process, its threads and its workers, largest time first.
    ``steps``: of window ``syscalls``. Includes the calls made while strace attaches and
    detaches."""

    steps: int
    rows: tuple[SyscallRow, ...]
