"""The roofline: the work of the traced steps, and the rates that the machine reaches.

Williams, Waterman, Patterson: Roofline, CACM 52(4), 2009.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from tdiag.model.kind import Kind
from tdiag.model.place import Place

# Ops that a slice's backward is made of: a whole gradient of zeros, and the sum with another.
FILLS, ADDS = ("aten::fill_", "aten::zero_"), ("aten::add_", "aten::add")

WITHOUT_TF32 = "float32 without TF32"  # a rate of a Roof


class OpWork(Kind, frozen=True, kw_only=True):
    """One op of one shape, per step. ``flops``: multiplications and additions of all its calls, for
    a matrix product, convolution, attention or recurrent layer; 0 for any other op. ``moved``:
    minimum bytes that one call reads and writes; what it reads twice counts once.

    ``host_ns`` and ``device_ns``: of all its calls; ``device_ns`` is None without a traced device.
    ``backward``: it runs in backward, for a traced forward op. ``at``: the user's function around
    it (in backward: around that forward op), None if no stacks were recorded."""

    name: str
    dims: tuple[tuple[int, ...], ...]
    dtype: str  # torch's name, "float32"
    count: float
    flops: float
    moved: float
    host_ns: float
    device_ns: float | None
    at: Place | None = None
    backward: bool = False

    @property
    def spent_ns(self) -> float:
        """Time on the device if one was traced, else on the host."""
        return self.host_ns if self.device_ns is None else self.device_ns


def convolves(op: OpWork) -> bool:
    """Forward convolutions only."""
    return "conv" in op.name and not op.backward and "backward" not in op.name


class Work(Kind, frozen=True, kw_only=True):
    """The ops of a traced step by shape, most time first, and the calls from Python or the autograd
    engine (``calls``, per step). Absent if no shapes were recorded."""

    ops: tuple[OpWork, ...]
    calls: float

    def heaviest(self, wanted: Callable[[OpWork], bool]) -> Place | None:
        """Where ops of this kind take most time; None if no stacks were recorded."""
        spent: Counter[Place] = Counter()
        for op in filter(wanted, self.ops):
            if op.at is not None:
                spent[op.at] += round(op.spent_ns)
        return max(spent, key=lambda at: spent[at], default=None)


class Roof(Kind, frozen=True, kw_only=True):
    """The rates the machine reaches. ``flops_per_s`` by dtype, and for matrix products in float32
    that may not use matrix units (``WITHOUT_TF32``) if that is another rate. ``bytes_per_s``: by
    size in bytes, smallest first, the rate at which a copy of that size reads and writes; the last
    is main memory's.

    ``threads``: intra-op threads of these rates. ``in_force``: the same for the threads the program
    used, if those are fewer. ``op_ns``: the cost of one call without work, None if unknown.
    ``source``: how the rates are known, for the report. ``certainty``: 0..1, the share of time the
    measuring threads had a core; below 1 the rates are lower bounds."""

    flops_per_s: dict[str, float]
    bytes_per_s: tuple[tuple[int, float], ...]
    source: str
    op_ns: float | None = None
    threads: int | None = None
    in_force: Roof | None = None
    certainty: float = 1.0

    def compute_ns(self, op: OpWork) -> float:
        """Time of its arithmetic at the roof; 0 for a dtype without a roof."""
        rate = self.flops_per_s.get(op.dtype, 0.0)
        return op.flops / rate * 1e9 if rate else 0.0

    def memory_ns(self, op: OpWork) -> float:
        """Time of its bytes at the roof for their size."""
        rate = next((r for size, r in self.bytes_per_s if op.moved <= size), 0.0)
        rate = rate or (self.bytes_per_s[-1][1] if self.bytes_per_s else 0.0)
        return op.count * op.moved / rate * 1e9 if rate else 0.0

    def best_ns(self, op: OpWork) -> float:
        """The longer of the two: arithmetic and memory traffic overlap at best."""
        return max(self.compute_ns(op), self.memory_ns(op))
