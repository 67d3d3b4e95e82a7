"""From a file to a :class:`tdiag.trace.Trace`."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from tdiag.errors import RunError
from tdiag.trace.columns import Damage, Growing, Ints, Mask, Trace
from tdiag.trace.decode import Block, Interned, columns_of, decode
from tdiag.trace.events import split
from tdiag.trace.inflate import Blocks, Progress
from tdiag.trace.parallel import in_processes, pays_off
from tdiag.trace.recover import recover, salvage_last
from tdiag.trace.split import NOT_A_TRACE_HINT, Splitter, parse_metadata

# No trace lasts longer; an event further away from the others has a damaged time.
LONGEST_NS = 24 * 3600 * 10**9
TAIL_LIMIT = 64 << 20  # of metadata after the events


def read_trace(path: Path | str, progress: Progress | None = None, *, alone: bool = True) -> Trace:
    """Read a torch.profiler trace, plain or gzipped, list or object; a large one in several
    processes, unless others are read at the same time (``alone`` false).

    Memory: about 100 bytes per event, whatever the length of its arguments. A truncated or broken
    file gives the readable events and describes the rest in ``trace.damage``. Raises RunError (exit
    code 2) if the file is missing, unreadable or not a trace.
    """
    path = Path(path)
    if path.is_dir():
        raise RunError(f"{path} is a folder, not a trace", "name the trace files in it")
    with _uncollected():
        return _Reader(path, progress, alone).trace()


@contextmanager
def _uncollected() -> Iterator[None]:
    """Without Python's garbage collector: events make no cycles, and searching millions of them
    would take a quarter of the time."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


class _Reader:
    def __init__(self, path: Path, progress: Progress | None, alone: bool) -> None:
        self.path = path
        self.alone = alone
        self.blocks = Blocks(path, progress)
        self.splitter = Splitter(self.blocks, path.name)
        self.damage = Damage()
        self.merged = _Merged()
        self.tail = b""  # from the "]" that ends the events
        self.ended = False
        self._unfinished = b""  # an event that its block did not finish
        self._unfinished_at = 0

    def trace(self) -> Trace:
        decoded = in_processes if self.alone and pays_off(self.path) else _in_this_process
        for offset, block, columns in decoded(self.path, self.splitter):
            self._take(offset, block, columns)
        self._finish()
        if not self.merged.is_trace(whole=not self.damage):
            raise RunError(f"{self.path.name} holds no trace events", NOT_A_TRACE_HINT)
        metadata = parse_metadata(self.splitter.head, self.tail)
        return self.merged.trace(self.path, metadata, self.damage)

    def _take(self, offset: int, block: bytes, columns: Block | None) -> None:
        if self.ended:
            if len(self.tail) < TAIL_LIMIT:
                self.tail += b"," + block if self.tail else block
            return
        if columns is not None:
            self._lose_unfinished()
            self.merged.add(columns)
            return
        if self._unfinished:
            block, offset = self._unfinished + b"," + block, self._unfinished_at
            self._unfinished = b""
        found = recover(block)
        self.merged.add(columns_of(split(found.events)))
        self.damage.repaired += found.repaired
        for lost in found.lost:
            self._lose(offset + lost)
        if found.unfinished is not None:
            self._unfinished = block[found.unfinished :]
            self._unfinished_at = offset + found.unfinished
        if found.end is not None:
            self.ended, self.tail = True, block[found.end :]

    def _lose(self, offset: int) -> None:
        self.damage.lost += 1
        if self.damage.first_lost_at is None:
            self.damage.first_lost_at = offset

    def _lose_unfinished(self) -> None:
        if self._unfinished:
            self._lose(self._unfinished_at)
            self._unfinished = b""

    def _finish(self) -> None:
        if self._unfinished:
            event, end = salvage_last(self._unfinished)
            if event is not None and end is not None:
                self.merged.add(columns_of(split([event])))
                self.damage.repaired += 1
                self.ended, self.tail = True, self._unfinished[end:]
        if not self.ended:
            self.damage.truncated_at = (
                self._unfinished_at if self._unfinished else self.splitter.read
            )
            self.damage.reason = self.blocks.broken or "the list of events is not closed"


def _in_this_process(
    _: Path, blocks: Iterable[tuple[int, bytes]]
) -> Iterator[tuple[int, bytes, Block | None]]:
    for offset, block in blocks:
        yield offset, block, decode(block)


class _Merged:
    """The blocks' columns together, with texts renumbered."""

    def __init__(self) -> None:
        self.names: Interned[str] = Interned()
        self.categories: Interned[str] = Interned()
        self.lanes: Interned[tuple[Any, Any]] = Interned()
        self.stacks: Interned[str] = Interned()
        self.shapes: Interned[tuple[str, str]] = Interned()
        self.counts: Counter[tuple[str, str]] = Counter()
        self.columns: dict[str, Growing] = {}

    def add(self, block: Block) -> None:
        columns = block.columns | {"memory": block.memory}
        for column, texts, interned in (
            ("name", block.names, self.names),
            ("category", block.categories, self.categories),
            ("lane", block.lanes, self.lanes),
            ("stack", block.stacks, self.stacks),
            ("shapes", block.shapes, self.shapes),
        ):
            numbers = np.array([interned[t] for t in texts] + [-1], columns[column].dtype)  # type: ignore[index]
            columns[column] = numbers[columns[column]]  # −1 (absent) picks the last, −1
        for column, values in columns.items():
            if column in self.columns:
                self.columns[column].append(values)
            else:
                self.columns[column] = Growing(values)
        self.counts.update(block.counts)

    def is_trace(self, whole: bool) -> bool:
        """Whether anything had a phase; a complete empty list is a trace, too."""
        return any(ph for ph, _ in self.counts) if self.counts else whole

    def trace(self, path: Path, metadata: dict[str, Any], damage: Damage) -> Trace:
        if not self.columns:
            self.add(columns_of(split([])))
        columns: dict[str, Any] = {name: grown.array() for name, grown in self.columns.items()}
        memory = columns.pop("memory")
        near = _near(columns["ts_ns"])
        if not near.all():
            damage.lost += int((~near).sum())
            columns = {name: column[near] for name, column in columns.items()}
        base = metadata.get("baseTimeNanoseconds")
        if isinstance(base, int):
            columns["ts_ns"] += base
            memory[:, 0] += base
        return Trace(
            path=path,
            **columns,
            memory=memory,
            names=list(self.names),
            categories=list(self.categories),
            lanes=list(self.lanes),
            stacks=list(self.stacks),
            shape_texts=list(self.shapes),
            counts=self.counts,
            metadata=metadata,
            damage=damage,
        )


def _near(ts_ns: Ints) -> Mask:
    """Events whose time is near that of the others."""
    sample = ts_ns[:: max(1, len(ts_ns) // 1000)]
    middle = int(np.median(sample)) if len(sample) else 0
    near: Mask = np.abs(ts_ns - middle) < LONGEST_NS
    return near
