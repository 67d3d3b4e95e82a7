"""The slow path: reads a block that is not valid JSON event by event."""

from __future__ import annotations

import json
import math
import re
from decimal import Decimal
from typing import Any, NamedTuple

import msgspec

from tdiag.trace.decode import MAX_US
from tdiag.trace.events import Event, ExactEvent
from tdiag.trace.split import BOUNDARY, EVENT_LIMIT

SKIPPED = re.compile(r"[\s,]*")
# Windows paths and similar: a backslash that begins no JSON escape.
LONE_BACKSLASH = re.compile(r'\\(?!["\\/bfnrt]|u[0-9a-fA-F]{4})')
BACKSLASH = re.compile(r'\\(?!")')
BARE_NUMBER = re.compile(r":\s*[-+]?(?:inf|nan)\b", re.IGNORECASE)  # what C++ prints, not JSON
# Unescaped quotes: a text field ends where the next known key begins.
TEXT_FIELD = re.compile(
    r'"(ph|cat|name)"\s*:\s*"(.*?)"\s*(?=,\s*"(?:ph|cat|name|pid|tid|ts|dur|args|id|s|bp)"\s*:|\}|$)',
    re.DOTALL,
)
NUMBER_FIELD = re.compile(r'"(pid|tid|ts|dur)"\s*:\s*"?(-?\d+(?:\.\d+)?)')
ARGUMENT = re.compile(
    r'"(External id|external id|correlation|Sequence number|stream|device|bytes)"\s*:\s*"?(-?\d+)'
)

_EVENT = msgspec.json.Decoder(ExactEvent)
# strict=False admits raw control characters in texts, as older exporters write them.
_SCAN = json.JSONDecoder(strict=False, parse_float=Decimal)


class Recovered(NamedTuple):
    """``lost``: offsets within the block of events that could not be read at all.
    ``unfinished``: offset where an event begins that the block does not finish, or None.
    ``end``: offset of the ``]`` that closes the list of events, or None if it is not here.
    """

    events: list[Event]
    repaired: int
    lost: list[int]
    unfinished: int | None
    end: int | None


def recover(block: bytes) -> Recovered:
    """Every event of ``block`` that can be read or repaired."""
    text = block.decode("latin-1")  # one character a byte, so that positions are byte offsets
    found = Recovered([], 0, [], None, None)
    repaired, at = 0, 0
    while True:
        skipped = SKIPPED.match(text, at)
        at = skipped.end() if skipped else at
        if at >= len(text):
            return found._replace(repaired=repaired)
        if text[at] == "]":
            return found._replace(repaired=repaired, end=at)
        event, until = _next_event(block, text, at)
        if event is None and until > at:  # valid JSON, but not an event
            found.lost.append(at)
        elif event is None:
            boundary = BOUNDARY.search(block, at)
            if not boundary:
                return found._replace(repaired=repaired, unfinished=at)
            until = boundary.end(1)
            event = _repaired(block[at : boundary.start(1)])
            if event is None:
                found.lost.append(at)
            else:
                repaired += 1
        if event is not None:
            found.events.append(event)
        at = until


def _next_event(block: bytes, text: str, at: int) -> tuple[Event | None, int]:
    try:
        _, until = _SCAN.raw_decode(text, at)
    except (json.JSONDecodeError, RecursionError):
        return None, at
    piece = block[at:until]
    try:
        event: Event = _EVENT.decode(piece)
        return (event if _plausible(event) else None), until
    except RecursionError:  # nested deeper than msgspec follows, but not too deep for json
        return None, at
    except (msgspec.DecodeError, UnicodeDecodeError):
        return _lenient(_SCAN.decode(piece.decode("utf-8", "replace"))), until


def salvage_last(piece: bytes) -> tuple[Event | None, int | None]:
    """The event left at a truncated or broken end, and the offset of the list's ``]`` after it."""
    if len(piece) > EVENT_LIMIT:
        return None, None
    closed = re.search(rb"\}\s*(?=\])", piece)
    if not closed:
        return None, None
    return _repaired(piece[: closed.end()]), closed.end()


def _repaired(piece: bytes) -> Event | None:
    text = piece.decode("utf-8", "replace")
    if LONE_BACKSLASH.search(text):  # a writer that escapes nothing, \t and \n included
        text = BACKSLASH.sub(r"\\\\", text)
    text = BARE_NUMBER.sub(": null", text)
    try:
        return _lenient(_SCAN.decode(text))
    except (json.JSONDecodeError, RecursionError):
        pass
    fields: dict[str, Any] = dict(TEXT_FIELD.findall(text))
    fields |= dict(NUMBER_FIELD.findall(text))
    fields["args"] = dict(ARGUMENT.findall(text))
    return _lenient(fields) if "ph" in fields and "ts" in fields else None


def _lenient(value: Any) -> Event | None:
    """An event with a field of an unexpected type: that field gets its default."""
    if not isinstance(value, dict):
        return None
    args = value.get("args")
    kept = {k: v for k, v in args.items() if _plain(v)} if isinstance(args, dict) else {}
    event: dict[str, Any] = {
        k: str(value[k]) for k in ("ph", "cat", "name") if value.get(k) is not None
    }
    event |= {k: value[k] for k in ("pid", "tid") if _plain(value.get(k))}
    try:
        event["ts"] = Decimal(str(value.get("ts") or 0))
        event["dur"] = float(value.get("dur") or 0)
        found = msgspec.convert(event | {"args": kept}, ExactEvent, strict=False)
    except (TypeError, ValueError, ArithmeticError, msgspec.ValidationError):
        return None
    return found if _plausible(found) else None


def _plain(value: Any) -> bool:
    return isinstance(value, (int, Decimal, str)) and not isinstance(value, bool)


def _plausible(event: Event) -> bool:
    """Whether both times are finite and in a century that traces come from."""
    times = (event.ts, event.dur)
    return all(math.isfinite(time) and abs(time) < MAX_US for time in times)
