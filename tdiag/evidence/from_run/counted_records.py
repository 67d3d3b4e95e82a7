"""The records of counted calls, like ``records.py``: torch calls by line, and all functions."""

from __future__ import annotations

import msgspec

from tdiag.evidence.from_run.records import At, Record


class CallsRecord(Record):
    steps: int
    rows: list[tuple[str, int, str, int, int, int]]
    total: int | None = None
    number: int = msgspec.field(name="pass", default=1)


class AgainRecord(Record):
    """Calls of functions with the input of an earlier call; a line: where, the function's name, the
    phase, calls, those again, different inputs of these, ns, ns of those again, bytes of the
    largest result."""

    steps: int
    lines: list[tuple[At, str, str, int, int, int, int, int, int]]


class OpsLine(msgspec.Struct):
    calls: float
    at: At = None
    phase: str = ""
    grad_calls: float = 0
    conversions: dict[str, float] = {}
    constructions: float = 0
    constructed: float = 0
    elapsed: float = 0
    constant: float = 0
    contracted: float = 0
    contraction: str = ""
    frozen: float = 0
    of_batch: float = 0
    again: float = 0
    parametrized: float = 0
    thrown_away: float = 0
    never_used: float = 0
    mostly_zero: float = 0
    nonzero: float = 0
    unwritten: float = 0
    copied: float = 0
    low_rank: float = 0
    low_rank_used: float = 0
    gathered: float = 0
    gathered_used: float = 0
    separate: float = 0
    penalty: float = 0
    factored: float = 0
    multiplied_out: float = 0
    alike: float = 0
    copied_on: float = 0
    copied_to_read: float = 0
    matrices: int = 0
    indexed: float = 0
    samples_at: At | None = None
    fft: float = 0
    fft_length: int = 0
    thin: float = 0
    thin_rank: int = 0
    thin_rows: int = 0
    prefix: float = 0
    in_loop: bool = False
    names: dict[str, float] = {}
    turns: float = 0
    repeated: float = 0
    one_row: bool = False
    series: float = 0
    looped: At = None
    shared: int = 0
    joined: int = 0
    tensors: int = 0
    shared_at: At = None
    moved_again: float = 0
    moved_bytes: float = 0
    work: float = 0
    backward: dict[str, float] = {}


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
    highest: int | None = None
    distinct: int | None = None


class FrozenFields(msgspec.Struct):
    names: list[str] = []
    features: float = 0
    modes: list[str] = []
    random: bool = False
    changed: bool = False


class OpsRecord(Record):
    steps: int
    lines: list[OpsLine]
    number: int = msgspec.field(name="pass", default=1)
    syncs: list[tuple[At, float]] | None = None
    synchronized: list[tuple[At, float]] = []
    bias_before_norm: list[tuple[str, str, At, int, int]] = []
    attention: list[tuple[At, int]] | None = None
    fused_attention: list[tuple[At, list[str], int]] = []
    padding: list[tuple[At, str, int, int, int, int]] | None = None
    packed: bool = False
    frozen: FrozenFields | None = None
    prefixes: list[tuple[At, int, int, int]] = []
    never_used: list[tuple[At, int]] = []
    copied: list[tuple[At, int, int]] = []
    gathered: list[tuple[At, int, int]] = []
    input_gradients: list[tuple[At, int, int, int, int]] = []
    constant_steps: int = 0
    out_of_place: list[tuple[str, At, int, int, int]] = []
    clips: list[ClipLine] = []
    checkpoints: list[tuple[At, bool | None]] = []
    module_moves: list[tuple[At, int]] = []
    tables: list[TableLine] = []
    graphs: list[tuple[At, int]] = []
    step: int = 0  # the first step after it
    backwards: int = 0
    synced: int | None = None
    backward_other: float | None = None


class WrittenFor(msgspec.Struct, array_like=True):
    """The gradients that a line's calls of backward compute for one optimizer: where it was made,
    the class of the module that has its parameters, how many numbers these are, their distance from
    the loss in nodes of the graph, and the calls whose gradients were gone before it stepped."""

    made_at: At
    module: str
    values: int
    depth: int
    calls: int
    gone: int


class GraphPart(msgspec.Struct, array_like=True):
    """What backward computes for these of the line's optimizers (``NO_OPTIMIZER``: for parameters
    without one; None: for other leaves): nodes of the graph, multiplications, and the elements of
    the gradients that the nodes take."""

    optimizers: list[int | None]
    nodes: int
    products: float
    numbers: int


class BackwardAt(msgspec.Struct, array_like=True):
    at: At
    written: list[WrittenFor]
    parts: list[GraphPart] = []


class BackwardsRecord(Record):
    """The lines that call backward."""

    lines: list[BackwardAt] = []
