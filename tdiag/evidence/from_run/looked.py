"""Records of what was counted in profiled windows and looked at between them."""

from __future__ import annotations

import msgspec

from tdiag.evidence.from_run.record import At, Record


class SchedulerRecord(Record):
    id: int
    name: str = ""
    at: At = None


class LookRecord(Record):
    """What the training looked like between two windows."""

    window: str = ""
    step: int = 0
    rates: dict[int, list[float | None]] = {}  # by optimizer, one a parameter group
    scheduled: list[int | None] = []  # steps of each scheduler
    gradient: float | str | None = None  # total norm, or "not finite"
    unused: int | None = None  # parameters of the DDP without a gradient
    kept: list[tuple[At, int, int, int]] = []  # place, tensors, bytes, with a graph
    kept_of: int = 0  # steps that made them
    kept_since: int = 0  # steps ago


class InputRecord(Record):
    """A tensor that an outermost module was given."""

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
    """A line that communicates with the other processes of the job."""

    id: int
    name: str = ""
    at: At = None


class CallsRecord(Record):
    steps: int
    rows: list[tuple[str, int, str, int, int, int]]
    total: int | None = None
    number: int = msgspec.field(name="pass", default=1)


class OpsLine(msgspec.Struct):
    calls: float
    at: At = None
    phase: str = ""
    grad_calls: float = 0
    conversions: dict[str, float] = {}
    constructions: float = 0
    elapsed: float = 0
    in_loop: bool = False
    names: dict[str, float] = {}
    turns: float = 0
    repeated: float = 0
    one_row: bool = False
    moved_again: float = 0
    moved_bytes: float = 0


class ClipLine(msgspec.Struct):
    name: str
    at: At = None
    calls: float = 0
    elapsed: float = 0
    tensors: int | None = None
    foreach: bool | None = None


class TableLine(msgspec.Struct):
    rows: int
    bytes: int
    looked_up: int
    name: str = ""
    at: At = None
    sparse: bool = False
    elsewhere: bool = False


class OpsRecord(Record):
    steps: int
    lines: list[OpsLine]
    number: int = msgspec.field(name="pass", default=1)
    syncs: list[tuple[At, float]] | None = None
    bias_before_norm: list[tuple[str, str, At, int, int]] = []
    attention: list[tuple[At, int]] | None = None
    out_of_place: list[tuple[str, At, int, int, int]] = []
    clips: list[ClipLine] = []
    checkpoints: list[tuple[At, bool | None]] = []
    module_moves: list[tuple[At, int]] = []
    tables: list[TableLine] = []
    graphs: list[tuple[At, int]] = []
    step: int = 0  # the first after it
    backwards: int = 0
    synced: int | None = None


class DispatchRecord(Record):
    op_ns: float
    grad_op_ns: float
