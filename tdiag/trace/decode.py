"""Typed events → columns."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Hashable, Sequence
from decimal import Decimal
from typing import Any, Generic, NamedTuple, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt

from tdiag.trace.events import ABSENT, Args, Events, Value, events_in

T = TypeVar("T", bound=Hashable)
Ints = npt.NDArray[np.int64]

TEXT_LIMIT = 1000  # of names and call stacks; kernel names reach 5,000 but differ much earlier
MAX_US = 4e15  # the year 2096; twice this in ns still fits int64, base and duration included
INT32_MAX = (1 << 31) - 1


class Interned(dict[T, int], Generic[T]):
    """Gives each distinct key the next number."""

    def __missing__(self, key: T) -> int:
        self[key] = number = len(self)
        return number


class Block(NamedTuple):
    """Columns of the complete (``ph: X``) events of one block, its own numbering of texts.

    ``memory`` has a row of :data:`MEMORY_COLUMNS` for each allocator event. ``counts``: events of
    the block by ``(ph, cat)``. See :class:`tdiag.trace.Trace` for the columns.
    """

    columns: dict[str, npt.NDArray[Any]]
    names: list[str]
    categories: list[str]
    lanes: list[tuple[Any, Any]]
    stacks: list[str]
    shapes: list[tuple[str, str]]
    memory: Ints
    counts: Counter[tuple[str, str]]


# Ops whose shapes and dtypes the evidence needs, and among these the ones that touch no data:
# views, and memory that is allocated but not written. The text of all others is not kept.
SHAPED = re.compile(r"aten::|mkldnn::")
UNTOUCHED = re.compile(
    r"::(view|_?reshape(_alias)?|_unsafe_view|t|transpose|permute|expand|as_strided|squeeze|"
    r"unsqueeze|select|slice|narrow|detach|alias|unbind|split(_with_sizes)?|chunk|numpy_T|mT|"
    r"flatten|unflatten|resolve_(conj|neg)|lift_fresh|empty(_like|_strided)?|resize_|set_|to|"
    r"contiguous|item|_local_scalar_dense|result_type|is_nonzero|expand_as|view_as)$"
)

MEMORY_COLUMNS = ("ts_ns", "bytes", "allocated", "reserved", "device_type", "device")


def decode(block: bytes) -> Block | None:
    """Columns of the comma-separated events in ``block``; None if it is not valid JSON."""
    try:
        return columns_of(events_in(block))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, Implausible):
        return None


class Implausible(ValueError):
    """A time that no trace can contain: not finite, or centuries away."""


def columns_of(events: Events) -> Block:
    """Raises Implausible."""
    spans, others = events
    args = [event.args for event in spans]
    # Few combinations of the four texts occur, so one look-up replaces three.
    distinct: Interned[tuple[str, str, Any, Any]] = Interned()
    kind = _array([distinct[e.cat, e.name, e.pid, e.tid] for e in spans], np.int32)
    names: Interned[str] = Interned()
    categories: Interned[str] = Interned()
    lanes: Interned[tuple[Any, Any]] = Interned()
    columns: dict[str, npt.NDArray[Any]] = {
        "ts_ns": _ns([event.ts for event in spans]),
        # Clocks that were set back have left negative durations.
        "dur_ns": np.maximum(_ns([event.dur for event in spans]), 0),
        "name": _array([names[name] for _, name, _, _ in distinct], np.int32)[kind],
        "category": _array([categories[cat] for cat, _, _, _ in distinct], np.int16)[kind],
        "lane": _array([lanes[pid, tid] for _, _, pid, tid in distinct], np.int32)[kind],
        "external": _narrow([a.external for a in args]),
        "correlation": _narrow([a.correlation for a in args]),
        "sequence": _narrow([a.sequence for a in args]),
    }
    if (columns["external"] == ABSENT).all():  # lower case until torch 1.9
        columns["external"] = _narrow([a.external_old for a in args])
    kinds: Interned[tuple[str, str]] = Interned()
    numbers = _array([kinds[event.ph, event.cat] for event in others], np.int16)
    counts = _counted(kinds, numbers) + _counted(
        [("X", category) for category in categories], columns["category"]
    )
    shaped = [i for name, i in names.items() if SHAPED.match(name) and not UNTOUCHED.search(name)]
    stacks, shapes = _rare(columns, args, shaped)
    return Block(
        columns,
        [name[:TEXT_LIMIT] for name in names],
        list(categories),
        list(lanes),
        stacks,
        shapes,
        _memory(others),
        counts,
    )


def _counted(
    kinds: Collection[tuple[str, str]], numbers: npt.NDArray[Any]
) -> Counter[tuple[str, str]]:
    """How often each kind's number occurs."""
    return Counter(
        dict(zip(kinds, np.bincount(numbers, minlength=len(kinds)).tolist(), strict=True))
    )


def _rare(
    columns: dict[str, npt.NDArray[Any]], args: list[Args], shaped: list[int]
) -> tuple[list[str], list[tuple[str, str]]]:
    """Columns that most events lack, looked up only if there is something to fill in."""
    size = len(args)
    rows = [row for row, a in enumerate(args) if a.stream is not None]
    work = [args[row] for row in rows]
    columns["stream"] = _filled(size, rows, _ints([a.stream for a in work]), np.int32)
    columns["device"] = _filled(size, rows, _ints([a.device for a in work]), np.int32)
    columns["bytes"] = _filled(size, rows, _ints([a.bytes for a in work]), np.int64)
    columns["occupancy"] = np.full(size, np.nan, np.float32)
    columns["occupancy"][rows] = _floats([a.occupancy for a in work])
    numbered = np.flatnonzero(columns["sequence"] != ABSENT).tolist()
    threads = _ints([args[row].forward_thread for row in numbered])
    columns["forward_thread"] = _filled(size, numbered, threads, np.int32)
    columns["stack"] = np.full(size, ABSENT, np.int32)
    stacks: Interned[str] = Interned()
    rows = [row for row, a in enumerate(args) if a.stack]
    columns["stack"][rows] = [stacks[str(args[row].stack)[:TEXT_LIMIT]] for row in rows]
    columns["shapes"] = np.full(size, ABSENT, np.int32)
    shapes: Interned[tuple[str, str]] = Interned()
    ops = np.flatnonzero(np.isin(columns["name"], shaped))
    columns["shapes"][ops] = [shapes[_shapes(args[row])] for row in ops]
    return list(stacks), list(shapes)


def _filled(size: int, rows: list[int], values: Ints, dtype: type) -> npt.NDArray[Any]:
    column: npt.NDArray[Any] = np.full(size, ABSENT, dtype)
    column[rows] = np.minimum(values, np.iinfo(dtype).max)
    return column


def _shapes(args: Args) -> tuple[str, str]:
    """(dims, dtypes) of an op's inputs, as the JSON text they were recorded in; may be empty."""
    dims = bytes(args.shapes) or bytes(args.shapes_old)
    return (
        dims[:TEXT_LIMIT].decode("utf-8", "replace"),
        bytes(args.types)[:TEXT_LIMIT].decode("utf-8", "replace"),
    )


def _memory(others: Sequence[Any]) -> Ints:
    events = [event for event in others if event.name == "[memory]"]
    ts = _ns([event.ts for event in events])
    fields = ("change", "allocated", "reserved", "memory_type", "memory_device")
    rest = [_ints([getattr(event.args, field) for event in events]) for field in fields]
    return np.stack([ts, *rest], axis=1)


def _ns(microseconds: list[float]) -> Ints:
    """Integer nanoseconds; whole and fractional parts are converted separately, because float64
    cannot hold epoch ns.

    Raises Implausible."""
    us = _array(microseconds, np.float64)
    if not (np.abs(us) < MAX_US).all():
        raise Implausible
    if microseconds and isinstance(microseconds[0], Decimal):
        return np.array([round(exact * 1000) for exact in microseconds], np.int64)
    whole = np.floor(us)
    ns: Ints = whole.astype(np.int64) * 1000 + np.rint((us - whole) * 1000).astype(np.int64)
    return ns


def _array(values: Collection[Any], dtype: type) -> npt.NDArray[Any]:
    """Like ``np.array``, nearly twice as fast: it does not search for nested lists."""
    return np.fromiter(values, dtype, len(values))


def _ints(values: list[Value]) -> Ints:
    """int64 of numbers, of numbers as text, or of nothing (:data:`ABSENT`)."""
    try:
        return _array(values, np.int64)
    except (TypeError, ValueError, OverflowError):
        return np.array([_int(value) for value in values], np.int64)


def _narrow(values: list[Value]) -> npt.NDArray[Any]:
    """int32 where all of the block's numbers fit, as they nearly always do."""
    wide = _ints(values)
    fits = not len(wide) or (wide.max() <= INT32_MAX and wide.min() >= ABSENT)
    return wide.astype(np.int32) if fits else wide


def _int(value: Value) -> int:
    try:
        number = int(value) if value is not None else ABSENT
    except (ValueError, OverflowError):  # "0x7f…", "stream 7", NaN: not a number to compare
        return ABSENT
    return number if -(1 << 63) <= number < 1 << 63 else ABSENT


def _floats(values: list[Value]) -> npt.NDArray[np.float32]:
    try:
        return np.array(values, np.float32)  # None becomes NaN
    except ValueError:
        return np.full(len(values), np.nan, np.float32)
