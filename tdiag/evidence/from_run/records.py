"""The probe's records, typed: one struct a kind of ``events/<pid>.jsonl``.

The fields are the table in ``docs/run-directory.md``. Fields of newer probes are ignored, fields
that an older or crashing one left out take their defaults.
"""

from __future__ import annotations

from typing import Any

import msgspec

from tdiag.evidence.from_run.looked import CallsRecord as CallsRecord
from tdiag.evidence.from_run.looked import CollectiveRecord as CollectiveRecord
from tdiag.evidence.from_run.looked import DdpRecord as DdpRecord
from tdiag.evidence.from_run.looked import DispatchRecord as DispatchRecord
from tdiag.evidence.from_run.looked import InputRecord as InputRecord
from tdiag.evidence.from_run.looked import LookRecord as LookRecord
from tdiag.evidence.from_run.looked import OpsRecord as OpsRecord
from tdiag.evidence.from_run.looked import SchedulerRecord as SchedulerRecord
from tdiag.evidence.from_run.record import At as At
from tdiag.evidence.from_run.record import Record as Record


class ProcessRecord(Record):
    pid: int
    ppid: int = 0
    t: int = 0
    started: int = 0
    import_torch: int = 0
    unix_ns: int = 0
    argv: list[str] = []
    python: str = ""
    rank: int | None = None
    world_size: int | None = None


class TorchRecord(Record):
    version: str = ""
    cuda: str | None = None
    hip: str | None = None
    devices: list[str] = []
    intra_op: int = 0
    inter_op: int = 0
    omp: str | None = None
    cpus_allowed: int | None = None
    threads_at: At = None


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
    sampler_len: int | None = None
    collate_name: str = ""
    collate_at: At = None


class IteratorRecord(Record):
    t: int
    loader: int
    pids: list[int] = []
    start_ns: int = 0
    started: bool = True


class Field(msgspec.Struct):
    """One tensor of a batch; what was not read of its values is None."""

    name: str
    dtype: str
    bytes: int
    min: float | None = None
    max: float | None = None
    integral: bool | None = None
    of_255: bool | None = None


class FetchRecord(Record):
    t: int
    wall: int
    loader: int | None = None
    worker: int | None = None
    load: int | None = None
    load_cpu: int | None = None
    collate: int | None = None
    collate_cpu: int | None = None
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
    runq: int | None = None
    step: int = 0
    allocated: int | None = None
    compiles: tuple[int, int, int] | None = None  # frames, of these again, ns, so far
    recompiled: list[tuple[At, str, int]] = []
    limit: bool = False


class StepsRecord(Record):
    """``n`` steps in a row, all of window ``w``, from ``s`` to ``t``; ``m``: flat threes."""

    i: int
    n: int
    s: int
    t: int
    w: str = ""
    m: list[int] = []


class TraceRecord(Record):
    file: str
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


class FinishRecord(Record):
    why: str = ""
    t: int = 0


class SamplerRecord(Record):
    """The in-process sampler stood in for py-spy."""

    source: str = ""
    why: str = ""


class FailureRecord(Record):
    where: str = ""
    what: str = ""


AnyRecord = (
    ProcessRecord
    | TorchRecord
    | RoleRecord
    | LoaderRecord
    | IteratorRecord
    | FetchRecord
    | ModuleRecord
    | CalledRecord
    | OptimizerRecord
    | SchedulerRecord
    | LookRecord
    | InputRecord
    | DdpRecord
    | CollectiveRecord
    | BoundaryRecord
    | WindowRecord
    | StepsRecord
    | TraceRecord
    | CallsRecord
    | OpsRecord
    | SyscallsRecord
    | DispatchRecord
    | FlagsRecord
    | FinishRecord
    | SamplerRecord
    | FailureRecord
)
