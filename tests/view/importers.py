"""What the importers of Chrome's JSON trace format ask of an event.

The facts are those of Perfetto's ``json_trace_tokenizer.cc`` and ``json_trace_parser.cc``: an
event that breaks one of them is dropped there and counted as a failure.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

Event = dict[str, Any]
MOST = (1 << 32) - 1  # pid and tid are uint32; larger and negative ones all become 0
METADATA = ("process_name", "thread_name", "process_labels", "process_sort_index",
            "thread_sort_index")  # fmt: skip


def complaints(events: list[Event]) -> list[str]:
    """What an importer would complain of, a line each."""
    return [f"{why}: {event}" for event in events if (why := _complaint(event))]


def _complaint(event: Event) -> str:
    phase, args = event.get("ph"), event.get("args")
    if phase not in ("X", "C", "M", "i", "s", "f"):
        return "unknown phase"
    for key in ("pid", "tid"):
        place = event.get(key, 0)
        if not isinstance(place, int | str) or (isinstance(place, int) and not 0 <= place <= MOST):
            return f"bad {key}"
    if not isinstance(event.get("ts"), int | float) and phase != "M":
        return "no time"
    if phase == "X" and not (isinstance(event.get("dur"), int | float) and event["dur"] >= 0):
        return "no duration"
    if phase == "C" and not (args and all(isinstance(v, int | float) for v in args.values())):
        return "a counter without numbers"
    if phase == "M" and (event["name"] not in METADATA or not args):
        return "metadata of nothing"
    if phase in "sf" and "id" not in event:
        return "a flow without id"
    return ""


def overlaps(events: list[Event]) -> list[tuple[Event, Event]]:
    """Spans of one thread of which neither holds the other: Perfetto moves those to another
    track. Times are rounded to nanoseconds, as it does."""
    lanes: dict[tuple[Any, Any], list[Event]] = defaultdict(list)
    for event in events:
        if event["ph"] == "X":
            lanes[event["pid"], event["tid"]].append(event)
    found = []
    for lane in lanes.values():
        opened: list[Event] = []
        for event in sorted(lane, key=lambda e: (ns(e["ts"]), -ns(e["dur"]))):
            while opened and end(opened[-1]) <= ns(event["ts"]):
                opened.pop()
            if opened and end(event) > end(opened[-1]):
                found.append((opened[-1], event))
            opened.append(event)
    return found


def ns(us: float) -> int:
    return round(us * 1000)


def end(event: Event) -> int:
    return ns(event["ts"]) + ns(event["dur"])
