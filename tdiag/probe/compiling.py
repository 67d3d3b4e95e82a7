"""What dynamo has compiled, read from its own counters; it is never imported for that."""

from __future__ import annotations

import os
import sys
from types import CodeType
from typing import Any

MOST_REASONS, LONGEST = 20, 200
# The key under which dynamo adds up the seconds of whole compilations, once for each.
WHOLE = "_compile.compile_inner"


def counts() -> list[int] | None:
    """Frames compiled so far, those compiled again, and ns spent on all of it; None where nothing
    was ever compiled."""
    utils = sys.modules.get("torch._dynamo.utils")
    frames = sys.modules.get("torch._dynamo.convert_frame")
    if utils is None or frames is None:
        return None
    per_frame = list(frames.FRAME_COMPILE_COUNTER.values())
    seconds = utils.compilation_time_metrics.get(WHOLE, ())
    return [sum(per_frame), sum(n - 1 for n in per_frame if n), round(sum(seconds) * 1e9)]


def why() -> dict[str, Any]:
    """`recompiled` [[place, the guard that failed, times], …] and `limit`: dynamo gave a function
    up after too many compilations and runs it as plain Python."""
    utils = sys.modules.get("torch._dynamo.utils")
    if utils is None:
        return {}
    found: dict[Any, int] = {}
    for code, reasons in list(utils.guard_failures.items()):
        for reason in reasons:
            key = (_place(code), _plain(str(reason)))
            found[key] = found.get(key, 0) + 1
    failed = [getattr(m, "fail_reason", None) or "" for m in utils.get_compilation_metrics()]
    most = sorted(found.items(), key=lambda item: -item[1])[:MOST_REASONS]
    return {
        "recompiled": [[place, reason, times] for (place, reason), times in most],
        "limit": any("limit exceeded" in reason for reason in failed),
    }


def _place(code: Any) -> tuple[str, int, str] | None:
    if not isinstance(code, CodeType):
        return None
    return os.path.abspath(code.co_filename), code.co_firstlineno, code.co_name


def _plain(reason: str) -> str:
    """Without the number of the compiled version in front: ``0/7: tensor 'x' size mismatch``."""
    head, colon, rest = reason.partition(": ")
    known = colon and head.replace("/", "").isdigit()
    return (rest if known else reason).strip()[:LONGEST]
