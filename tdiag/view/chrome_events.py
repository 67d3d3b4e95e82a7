"""Chrome trace events: read from a trace one block at a time, and written gzipped."""

from __future__ import annotations

import gzip
import json
import math
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from tdiag.trace.inflate import Blocks
from tdiag.trace.split import BOUNDARY, Splitter

Event = dict[str, Any]

LEVEL = 1  # of gzip: traces shrink to a twentieth; higher levels are slower
_SKIPPED = re.compile(r"[\s,]*")
_LENIENT = json.JSONDecoder(strict=False)  # raw control characters in texts, NaN
_decode = msgspec.json.Decoder(list[Any]).decode


class Reader:
    """Iterates lists of events as they are in the file, with all phases and arguments.

    ``lost`` counts unreadable events; a broken or truncated file gives the rest. Memory: one block
    (a megabyte of text). Raises RunError if the file is missing or not a trace.
    """

    def __init__(self, path: Path) -> None:
        self._blocks = Splitter(Blocks(path), path.name)
        self._ended = False
        self._rest = b""  # the beginning of an event that its block did not finish
        self.lost = 0

    def __iter__(self) -> Iterator[list[Event]]:
        for _, block in self._blocks:
            if self._ended:
                return
            whole = self._rest + b"," + block if self._rest else block
            self._rest = b""
            try:
                found = _decode(b"[" + whole + b"]")
            except msgspec.DecodeError:
                found = list(self._recovered(whole))
            events = [event for event in found if isinstance(event, dict)]
            self.lost += len(found) - len(events)
            yield events
        self.lost += bool(self._rest.strip(b" \t\r\n,"))

    def _recovered(self, block: bytes) -> Iterator[Any]:
        """Read event by event, and find the list's end, after which there is no JSON list."""
        text = block.decode("latin-1")  # one character a byte, so that positions are byte offsets
        at = 0
        while (at := _end(text, at)) < len(text):
            if text[at] == "]":
                self._ended = True
                return
            try:
                _, until = _LENIENT.raw_decode(text, at)
                yield _LENIENT.decode(block[at:until].decode("utf-8", "replace"))
                at = until
            except (json.JSONDecodeError, RecursionError):
                boundary = BOUNDARY.search(block, at)
                if boundary is None:
                    self._rest = block[at:]
                    return
                self.lost += 1
                at = boundary.end(1)


def _end(text: str, at: int) -> int:
    skipped = _SKIPPED.match(text, at)
    return skipped.end() if skipped else at


class Writer:
    """Writes ``{metadata, "traceEvents": [...]}``. The events come last: torch-tb-profiler adds
    its own after the file's last ``]``."""

    def __init__(self, path: Path, metadata: dict[str, Any]) -> None:
        self._file = gzip.open(path, "wb", compresslevel=LEVEL)  # noqa: SIM115
        head = _encode(metadata)[:-1]
        self._file.write(head + (b"," if len(head) > 1 else b"") + b'"traceEvents":[')
        self._first = True

    def write(self, events: Iterable[Event]) -> None:
        text = _encode(list(events))[1:-1]
        if text:
            self._file.write(text if self._first else b",\n" + text)
            self._first = False

    def __enter__(self) -> Writer:
        return self

    def __exit__(self, failed: object, *_: object) -> None:
        if not failed:
            self._file.write(b"]}")
        self._file.close()


def _encode(value: Any) -> bytes:
    try:
        return msgspec.json.encode(value)
    except UnicodeEncodeError:  # half of a surrogate pair, which JSON can escape
        return json.dumps(value).encode()


def is_number(value: Any) -> bool:
    """Whether it can be a time: a broken exporter's JSON has null, text and NaN there."""
    return isinstance(value, int | float) and math.isfinite(value)


def to_ns(us: float) -> int:
    """Microseconds as nanoseconds. The fraction is converted separately: 4e12 µs × 1000, the size
    of Kineto's times, is too large for float64 to distinguish nanoseconds."""
    whole = int(us)
    return whole * 1000 + round((us - whole) * 1000)


def complete(
    name: str, category: str, place: tuple[int, int], begin_us: float, us: float, **args: Any
) -> Event:
    """A span of ``us`` microseconds in thread ``place[1]`` of process ``place[0]``."""
    pid, tid = place
    return {
        "ph": "X", "cat": category, "name": name, "pid": pid, "tid": tid, "ts": begin_us,
        "dur": us, "args": args,
    }  # fmt: skip


def named(kind: str, place: tuple[int, int], **args: Any) -> Event:
    """Metadata: ``kind`` is ``process_name``, ``thread_name``, ``process_sort_index``, …"""
    return {"ph": "M", "name": kind, "pid": place[0], "tid": place[1], "ts": 0, "args": args}


def counter(name: str, pid: int, at_us: float, **values: float) -> Event:
    return {"ph": "C", "name": name, "pid": pid, "tid": 0, "ts": at_us, "args": values}
