"""Cuts the byte stream of a trace into its head and blocks of whole events, and reads its metadata:
devices, rank, clock base."""

from __future__ import annotations

import json
import re
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any

from tdiag.errors import RunError

# The boundary between two events. Inside a string its quote would be escaped, so only lists of
# objects in an event's arguments can match as well; a block cut there does not decode, and is
# recovered.
BOUNDARY = re.compile(rb'\}(\s*,\s*)\{\s*"')
EVENTS_KEY = re.compile(rb'"traceEvents"\s*:\s*\[')
WHITESPACE = b" \t\r\n"
BOM = b"\xef\xbb\xbf"

HEAD_LIMIT = 64 << 20  # no known trace has a megabyte before its events
EVENT_LIMIT = 64 << 20  # nor an event of that size: without a boundary until then it is not a trace
SEARCH_WINDOWS = (1 << 16, 1 << 20)  # events are short: the last boundary is near the end

NOT_A_TRACE_HINT = (
    "a torch.profiler trace is the JSON of export_chrome_trace or tensorboard_trace_handler"
)
_JSON = json.JSONDecoder(strict=False)
# Looked up one by one when the text around the events is broken or breaks off.
KNOWN_KEYS = ("schemaVersion", "deviceProperties", "distributedInfo", "baseTimeNanoseconds")


class Splitter:
    """Iterates ``(offset, block)``: comma-separated whole events and their uncompressed offset.

    ``head`` is everything before the first event, up to and including its ``[``. The last block
    also contains the end of the list and whatever follows it. Raises RunError if the stream does
    not begin like a trace.
    """

    def __init__(self, stream: Iterable[bytes], name: str) -> None:
        self._stream = iter(stream)
        self._name = name
        self.head = b""
        self.read = 0  # uncompressed bytes given out so far, the head included

    def __iter__(self) -> Iterator[tuple[int, bytes]]:
        rest = self._skip_head()
        offset = len(self.head)
        for piece in self._stream:
            rest = rest + piece if rest else piece
            cut = last_boundary(rest)
            if cut is None:
                if len(rest) > EVENT_LIMIT:
                    self.read = offset + len(rest)
                    yield offset, rest
                    offset, rest = self.read, b""
                continue
            end, begin = cut
            yield offset, rest[:end]
            offset, rest = offset + begin, rest[begin:]
        self.read = offset + len(rest)
        yield offset, rest

    def _skip_head(self) -> bytes:
        """Find the first event; returns the part of the list that was already read."""
        seen = b""
        for piece in self._stream:
            seen += piece
            begin = len(BOM) if seen.startswith(BOM) else 0
            text = seen[begin : begin + 4096].lstrip(WHITESPACE)
            if not text:
                continue
            if text[:1] == b"[":
                split = seen.index(b"[") + 1
            elif text[:1] != b"{":
                raise RunError(f"{self._name} is not JSON, so not a trace", NOT_A_TRACE_HINT)
            elif found := EVENTS_KEY.search(seen):
                split = found.end()
            elif len(seen) > HEAD_LIMIT:
                break
            else:
                continue
            self.head = seen[:split]
            return seen[split:]
        what = "is JSON without traceEvents" if seen.strip() else "is empty"
        raise RunError(f"{self._name} {what}: not a trace", NOT_A_TRACE_HINT)


def last_boundary(block: bytes) -> tuple[int, int] | None:
    """(end of the last whole event, begin of the next) at the last boundary, or None."""
    for window in (*SEARCH_WINDOWS, len(block)):
        found = deque(BOUNDARY.finditer(block, max(0, len(block) - window)), maxlen=1)
        if found:
            return found[0].start(1), found[0].end(1)
    return None


def parse_metadata(head: bytes, tail: bytes) -> dict[str, Any]:
    """The top-level object without its events. ``head`` ends in the events' ``[``, ``tail``
    begins with its ``]`` (empty in a truncated file). Empty for a bare list."""
    before, after = head.decode("utf-8", "replace"), tail.decode("utf-8", "replace")
    if before.lstrip("\ufeff \t\r\n")[:1] == "[":
        return {}
    for text in (before + (after or "]}"), before + "]}"):
        try:
            found = _JSON.decode(text.lstrip("\ufeff"))
        except (json.JSONDecodeError, RecursionError):
            continue
        if isinstance(found, dict):
            found.pop("traceEvents", None)
            return found | _single(after) if text != before + after else found
    return _single(before) | _single(after)


def _single(text: str) -> dict[str, Any]:
    found = {}
    for key in KNOWN_KEYS:
        if match := re.search(rf'"{key}"\s*:\s*', text):
            try:
                found[key], _ = _JSON.raw_decode(text, match.end())
            except (json.JSONDecodeError, RecursionError):
                continue
    return found
