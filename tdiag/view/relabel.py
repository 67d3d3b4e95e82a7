"""The copy of a trace that torch-tb-profiler 0.4.3 reads correctly.

The plugin's last release knows only the categories of older Kinetos. In a current trace it drops
every ``user_annotation``, so that DataLoader time shows as 0, and every ``cuda_runtime``, so that
steps end without their kernels; one event without a category or a duration makes it drop the file.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tdiag.evidence.from_trace.sorted_events import RUNTIME
from tdiag.trace import Trace
from tdiag.view.chrome_events import Event, Reader, Writer, is_number, to_ns
from tdiag.view.cut import STEP, Cut

# Categories whose events the plugin puts into the tree of a thread, whose id it reads as a number.
_IN_TREE = ("cpu_op", "operator", "python_function", "user_annotation", "python")
SKIPPED = "tdiag_skipped"  # a category that the plugin does not know and so ignores


def relabel(
    trace: Trace, target: Path, lanes: Iterable[list[Event]] = (), cut: Cut | None = None
) -> int:
    """Write the copy, with more ``lanes``, to ``target`` (``.json.gz``); returns how many events
    could not be read. ``trace``: the original, already read; its file is streamed once more and
    never changed. ``cut``: the part to copy. Times start near 0, where float64 microseconds still
    distinguish nanoseconds.
    """
    begin_ns = int(trace.ts_ns.min()) if len(trace) else 0
    base = trace.metadata.get("baseTimeNanoseconds")
    base_ns = base if isinstance(base, int) else 0
    metadata = trace.metadata | {"baseTimeNanoseconds": begin_ns, "traceName": target.name}
    threads: dict[Any, int] = {}
    reader = Reader(trace.path)
    with Writer(target, metadata) as writer:
        for events in reader:
            kept = []
            for event in events:
                if adapt(event, threads):
                    at_ns = to_ns(event["ts"]) + base_ns
                    event["ts"] = 0 if event.get("ph") == "M" else (at_ns - begin_ns) / 1000
                    if cut is None or cut.holds(event, at_ns):
                        kept.append(event)
            writer.write(kept)
        for events in lanes:
            last_us = math.inf if cut is None else (cut.end_ns - begin_ns) / 1000
            writer.write([event for event in events if event["ts"] < last_us])
    return reader.lost


def adapt(event: Event, threads: dict[Any, int]) -> bool:
    """Change the event to what the plugin understands; returns whether it can be kept.

    ``threads``: numbers given to threads without one; extended here.
    """
    event.setdefault("name", "")
    if event.get("ph") == "M":
        event["ts"] = 0
    if not is_number(event.get("ts")):
        return False
    if event.get("ph") != "X":
        return True
    if not is_number(event.get("dur")):
        return False
    if not isinstance(event.get("args"), dict):
        event["args"] = {}
    category = event["cat"] = category_for(str(event.get("cat") or ""), str(event["name"]))
    if category in _IN_TREE and not _numbered(event.get("tid")):
        event["tid"] = threads.setdefault(event.get("tid"), -1 - len(threads))
    return True


def category_for(category: str, name: str) -> str:
    """The category under which the plugin handles the event correctly."""
    known = category.lower()
    if name.startswith("ProfilerStep#"):
        # On a device it would be a second step; and the plugin needs a number after the #.
        return known if STEP.match(name) and known in _IN_TREE else SKIPPED
    if known == "user_annotation":
        return "cpu_op"
    if known == "gpu_user_annotation" or not known:
        return SKIPPED
    if known == "concurrent_kernel":
        return "kernel"
    return "runtime" if RUNTIME.search(known) else category


def _numbered(thread: Any) -> bool:
    return isinstance(thread, int) or (isinstance(thread, str) and thread.lstrip("-").isdecimal())
