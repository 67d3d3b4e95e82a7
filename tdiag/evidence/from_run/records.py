"""The probe's records, typed: one struct per kind of ``events/<pid>.jsonl``.

``docs/run-directory.md`` lists the fields. Fields of newer probes are ignored; fields that an older
or crashed probe left out take their defaults.
"""

from __future__ import annotations

from typing import Any, ClassVar

import msgspec

from tdiag.model.place import Place
from tdiag.probe.wire import LATE

At = tuple[str, int, str] | None  # file, line, function


class Record(
    msgspec.Struct, tag_field="kind", tag=lambda name: name.removesuffix("Record").lower(), gc=False
):
    """Base: the tag is the class name without ``Record``, in lower case. No record refers to
    itself, so the garbage collector need not visit the hundreds of thousands of a large job."""


class ProcessRecord(Record):
    pid: int
    t: int = 0
    started: int = 0
    import_torch: int = 0
    unix_ns: int = 0
    argv: list[str] = []
    python: str = ""
    rank: int | None = None
    world_size: int | None = None


class DeviceFacts(msgspec.Struct):
    """The device on which a process computes."""

    kind: str = "cuda"
    index: int | None = None
    name: str = ""
    uuid: str | None = None
    memory: int | None = None


class TorchRecord(Record):
    version: str = ""
    cuda: str | None = None
    hip: str | None = None
    devices: list[str] = []
    device: DeviceFacts | None = None
    intra_op: int = 0
    inter_op: int = 0
    omp: str | None = None
    cpus_allowed: int | None = None
    framework: tuple[str, str] | None = None
    debug: dict[str, str] | None = None
    pools: dict[str, int] | None = None


class RoleRecord(Record):
    role: str
    tid: int = 0
    rank: int | None = None
    world_size: int | None = None
    worker: int | None = None
    intra_op: int | None = None


class LoaderRecord(Record):
    id: int
    at: At = None
    num_workers: int = 0
    batch_size: int | None = None
    prefetch_factor: int | None = None
    pin_memory: bool = False
    persistent_workers: bool = False
    drop_last: bool | None = None
    in_order: bool | None = None
    start_method: str | None = None
    dataset_class: str = ""
    dataset_at: At = None
    dataset_len: int | None = None
    containers: list[tuple[str, str, int, str]] = []
    sampler_len: int | None = None
    sampler_at: At = None
    sampler_class: str = ""
    collate_name: str = ""
    collate_at: At = None


class IteratorRecord(Record):
    t: int
    loader: int
    pids: list[int] = []
    start_ns: int = 0
    started: bool = True
    new: bool = False
    at: At = None


class Field(msgspec.Struct):
    """One tensor of a batch; None for values that were not read."""

    name: str
    dtype: str
    bytes: int
    min: float | None = None
    max: float | None = None
    integral: bool | None = None
    of_255: bool | None = None
    padded: list[int] | None = None


class Decoded(msgspec.Struct):
    """JPEG pictures of a fetch; ``shrunk``: sums over the scaled-down ones, by draft scale."""

    decoded: int
    shrunk: list[tuple[int, int, int, int, int, int]] = []
    at: At = None
    size: tuple[int, int] | None = None
    to: tuple[int, int] | None = None


class FetchRecord(Record):
    t: int
    wall: int
    loader: int | None = None
    worker: int | None = None
    cpu: int | None = None
    load: int | None = None
    load_cpu: int | None = None
    collate: int | None = None
    collate_cpu: int | None = None
    process_cpu: int | None = None
    pool_threads: int | None = None
    runq: int | None = None
    read: int | None = None
    rchar: int | None = None
    majflt: int | None = None
    kernel: int | None = None
    samples: int | None = None
    opens: int | None = None
    opened: int | None = None
    folders: list[tuple[str, int]] = []
    random: bool | None = None
    own_generator: bool | None = None
    fields: list[Field] = []
    bytes: int | None = None
    dtypes: dict[str, int] | None = None
    pictures: Decoded | None = None


class ModuleRecord(Record):
    id: int
    name: str = ""
    at: At = None
    parameters: int = 0
    parameter_bytes: int = 0
    loss: bool = False
    classes: dict[str, int] = {}
    mode_dependent: list[str] = []
    dtypes: dict[str, int] = {}
    conv_bytes: int = 0
    channels_last_bytes: int = 0


class CalledRecord(Record):
    module: int
    mode: int
    at: At = None


class OptimizerRecord(Record):
    id: int
    name: str = ""
    at: At = None
    tensors: int = 0
    config: dict[str, Any] = {}
    groups: int = 1
    settings: int = 1


class BoundaryRecord(Record):
    source: str
    t: int = 0
    took: int = 0


class WindowRecord(Record):
    name: str
    state: str
    t: int = 0
    number: int = msgspec.field(name="pass", default=1)
    why: str = ""
    cpu: int | None = None
    runq: int | None = None
    # CPU ns of Python's other threads, by native id; 0: of those that have ended.
    threads: dict[int, int] | None = None
    step: int = 0
    allocated: int | None = None
    drained: int | None = None
    peak: int | None = None
    reserved: int | None = None
    compiles: tuple[int, int, int] | None = None  # compiled frames, recompiled ones, ns, so far


class StepsRecord(Record):
    """``n`` consecutive steps, all in window ``w``, from ``s`` to ``t``; ``m``: a flat list of
    threes."""

    i: int
    n: int
    s: int
    t: int
    w: str = ""
    m: list[int] = []


class LateRecord(Record):
    """The same for a late window, minutes or hours after the others, with the process's resident
    bytes."""

    i: int
    n: int
    s: int
    t: int
    m: list[int] = []
    resident: int | None = None
    compiles: tuple[int, int, int] | None = None
    w: ClassVar[str] = LATE


class TraceRecord(Record):
    """``device``: it should contain device work; ``faults``: what Kineto said went wrong."""

    file: str
    device: bool = False
    faults: list[str] = []
    t: int = 0
    number: int = msgspec.field(name="pass", default=1)
    steps: int = 0


class SyscallsRecord(Record):
    steps: int
    number: int = msgspec.field(name="pass", default=1)


class FlagsRecord(Record):
    anomaly: bool = False
    deterministic: bool = False
    cudnn_benchmark: bool = False
    profiler: bool = False
    trace: str = ""
    autocast: str = ""
    compiled: bool = False
    scaler: bool | None = None
    agent: list[str] = []


class SettingsRecord(Record):
    """Rows of setting, value, the user's line, and times it was set in the window that ended;
    ``steps``: the window's number of steps."""

    steps: int = 0
    rows: list[tuple[str, bool | int | str, At, int]] = []


class FinishRecord(Record):
    why: str = ""
    t: int = 0


class SamplerRecord(Record):
    """The in-process sampler replaced py-spy."""

    source: str = ""
    why: str = ""


class FailureRecord(Record):
    where: str = ""
    what: str = ""


class SaverRecord(Record):
    name: str
    at: At = None


class StartedRecord(Record):
    """A process that the training thread started."""

    t: int
    at: At = None


class SchedulerRecord(Record):
    id: int
    name: str = ""
    at: At = None


class UnusedGradients(msgspec.Struct, array_like=True):
    """Numbers in a module's parameters whose gradients no optimizer uses, how many of them one has
    all the same, and the part of the module that has them all and no others."""

    module: int
    numbers: int = 0
    with_state: int = 0
    within: str = ""


class InspectionRecord(Record):
    """Facts about the training, read between two windows."""

    window: str = ""
    step: int = 0
    rates: dict[int, list[float | None]] = {}  # by optimizer, one per parameter group
    scheduled: list[int | None] = []  # steps of each scheduler
    states: dict[int, int | None] = {}  # by optimizer, bytes of its state; None = not known
    gradient: float | str | None = None  # total norm, or "not finite"
    unused: int | None = None  # number of DDP parameters without a gradient
    buffers: tuple[int, int] = (0, 0)  # bytes that DDP sends, and those unchanged since the last
    unused_gradients: list[UnusedGradients] = []
    frozen_by_name: dict[int, str] = {}  # by module, one in it that a plain attribute freezes
    hooks: list[tuple[At, int]] = []  # registered more than once in one place: how often
    kept: list[tuple[At, int, int, int]] = []  # place, tensors, bytes, with a graph
    kept_of: int = 0  # the number of steps that made them
    kept_since: int = 0  # steps ago


class InputRecord(Record):
    """A tensor passed to an outermost module."""

    module: int
    name: str
    dtype: str
    shape: list[int]
    mean: list[float]
    std: list[float]
    min: float
    max: float
    first: bool = True
    binary: bool = False


class DdpRecord(Record):
    find_unused_parameters: bool = False
    static_graph: bool = False
    gradient_as_bucket_view: bool = False
    bucket_bytes: int | None = None
    comm_hook: str = ""
    parameter_bytes: int = 0


class CollectiveRecord(Record):
    """A line that communicates with the job's other processes."""

    id: int
    name: str = ""
    at: At = None
    by: str = ""


class CompiledRecord(Record):
    """What dynamo did so far; ``probe/dynamo.py`` describes the fields; None: unknown."""

    compilations: list[tuple[str, tuple[str, int, str], int, int]] | None = None
    breaks: list[tuple[list[At], str, int]] | None = None
    recompiled: list[tuple[At, str, int]] | None = None
    limit: bool | None = None


class DispatchRecord(Record):
    op_ns: float
    grad_op_ns: float
    op_unprofiled_ns: float | None = None


NOWHERE = Place(file="", line=0)  # called by library code; the user's line is unknown


def location(at: At) -> Place | None:
    return Place(file=at[0], line=at[1], function=at[2]) if at else None
