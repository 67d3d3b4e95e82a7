"""A trace as columns: one row per complete event, in file order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Integers = npt.NDArray[np.signedinteger[Any]]  # int32 where every value fits, else int64
Rows = npt.NDArray[np.int64]  # row numbers of a Trace
Mask = npt.NDArray[np.bool_]

ABSENT = -1  # in integer columns: the event has no such argument


class Growing:
    """A column that grows by blocks, in one array of spare capacity.

    Spare pages that were never written take no memory, so there can be many of them and the array
    is rarely copied. Many small arrays, concatenated at the end, would need twice the memory.
    """

    def __init__(self, first: npt.NDArray[Any]) -> None:
        self._array = first
        self._used = len(first)

    def append(self, values: npt.NDArray[Any]) -> None:
        if values.dtype.itemsize > self._array.dtype.itemsize:
            self._array = self._array.astype(values.dtype)
        used = self._used + len(values)
        if used > len(self._array):
            larger = np.empty((max(4 * used, 1 << 12), *values.shape[1:]), self._array.dtype)
            larger[: self._used] = self._array[: self._used]
            self._array = larger
        self._array[self._used : used] = values
        self._used = used

    def array(self) -> npt.NDArray[Any]:
        return self._array[: self._used]


@dataclass
class Damage:
    """The parts of the file that could not be read. Offsets are bytes of the uncompressed file.

    ``lost``: events that are missing; ``repaired``: events with broken JSON whose fields could
    still be distinguished; ``truncated_at``: where the file breaks off, None if it is whole.
    """

    lost: int = 0
    repaired: int = 0
    first_lost_at: int | None = None
    truncated_at: int | None = None
    reason: str = ""

    def __bool__(self) -> bool:
        return bool(self.lost or self.repaired or self.truncated_at is not None)

    def describe(self) -> str:
        """One sentence for the report; empty if the file is intact."""
        parts = []
        if self.truncated_at is not None:
            parts.append(f"it breaks off at byte {self.truncated_at:,} ({self.reason})")
        if self.lost:
            where = (
                "" if self.first_lost_at is None else f" (the first at byte {self.first_lost_at:,})"
            )
            parts.append(f"{_events(self.lost)} could not be read{where}")
        if self.repaired:
            parts.append(f"{_events(self.repaired)} had broken JSON and could be repaired")
        state = "is incomplete" if self.truncated_at is not None or self.lost else "was repaired"
        return f"the trace {state}: {'; '.join(parts)}" if parts else ""


def _events(number: int) -> str:
    return f"{number:,} event{'s' * (number != 1)}"


@dataclass(frozen=True)
class Trace:
    """The complete events (``ph: X``) of one trace, a row each, in file order.

    ============== ======= ==========================================================
    column         dtype   meaning
    ============== ======= ==========================================================
    ts_ns          int64   start, ns. Since the Unix epoch where the file says so (epoch
                           microseconds, or ``baseTimeNanoseconds``, which is added)
    dur_ns         int64   duration, ns
    name           int32   index into ``names`` (texts are cut at 1,000 characters)
    category       int16   index into ``categories``, as spelled in the file
    lane           int32   index into ``lanes``, the distinct ``(pid, tid)``
    external       integer ``External id``: ties device work to the op that issued it
    correlation    integer ties device work to its launch call
    sequence       integer ``Sequence number``: ties backward nodes to forward ops
    forward_thread int32   ``Fwd thread id``: set (not 0) on backward nodes
    stream         int32   device stream
    device         int32   device number
    bytes          int64   of a copy or memset
    occupancy      float32 ``est. achieved occupancy %``, NaN where absent
    stack          int32   index into ``stacks`` (old ``Call stack`` arguments)
    shapes         int32   index into ``shape_texts``: (dims, dtypes) of an op, JSON; none of views
    ============== ======= ==========================================================

    Integers are −1 where the event has no such argument. ``counts`` has every event of the file
    by ``(ph, cat)``. ``memory``: one row per allocator event, columns
    ``ts_ns, bytes, allocated, reserved, device_type, device``.
    """

    path: Path
    ts_ns: Ints
    dur_ns: Ints
    name: npt.NDArray[np.int32]
    category: npt.NDArray[np.int16]
    lane: npt.NDArray[np.int32]
    external: Integers
    correlation: Integers
    sequence: Integers
    forward_thread: npt.NDArray[np.int32]
    stream: npt.NDArray[np.int32]
    device: npt.NDArray[np.int32]
    bytes: Ints
    occupancy: npt.NDArray[np.float32]
    stack: npt.NDArray[np.int32]
    shapes: npt.NDArray[np.int32]
    names: list[str]
    categories: list[str]
    lanes: list[tuple[Any, Any]]
    stacks: list[str]
    shape_texts: list[tuple[str, str]]
    memory: Ints
    counts: Counter[tuple[str, str]]
    metadata: dict[str, Any] = field(default_factory=dict)
    damage: Damage = field(default_factory=Damage)

    def __len__(self) -> int:
        return len(self.ts_ns)

    def ends(self, rows: Rows | slice = slice(None)) -> Ints:
        """When these events end, ns; computed at each call, so that no column stays in memory."""
        ends: Ints = self.ts_ns[rows] + self.dur_ns[rows]
        return ends

    @property
    def device_properties(self) -> list[dict[str, Any]]:
        """``deviceProperties``: every device of the machine, whether it was traced or not."""
        found = self.metadata.get("deviceProperties") or self.metadata.get("computeProperties")
        return [d for d in found if isinstance(d, dict)] if isinstance(found, list) else []

    @property
    def distributed(self) -> dict[str, Any]:
        """``distributedInfo`` (rank, world_size, backend …), or empty."""
        found = self.metadata.get("distributedInfo")
        return found if isinstance(found, dict) else {}

    def named(self, rows: Rows, matches: Callable[[str], object]) -> Mask:
        """Whether ``matches`` accepts the name of each row. It is called once per distinct name."""
        names = self.name[rows]
        answers = np.zeros(len(self.names), np.bool_)
        for number in np.flatnonzero(np.bincount(names, minlength=1)).tolist():
            answers[number] = bool(matches(self.names[number]))
        return answers[names]
