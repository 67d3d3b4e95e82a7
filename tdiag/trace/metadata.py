"""What a trace says around its events: devices, rank, clock base."""

from __future__ import annotations

import json
import re
from typing import Any

_JSON = json.JSONDecoder(strict=False)
# Looked up one by one when the text around the events is broken or breaks off.
KNOWN_KEYS = ("schemaVersion", "deviceProperties", "distributedInfo", "baseTimeNanoseconds")


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
