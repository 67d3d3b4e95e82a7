"""The large Python containers that a dataset holds."""

from __future__ import annotations

from typing import Any

# With fewer objects all pages that hold them are a few megabytes.
MANY_OBJECTS = 100_000


def containers_of(dataset: Any) -> list[list[Any]]:
    """``[attribute, type, items, type of the first item]`` of each of its lists, tuples, dicts and
    sets with ``MANY_OBJECTS`` or more items, largest first. Calls no user code."""
    try:
        attributes = object.__getattribute__(dataset, "__dict__")
    except AttributeError:
        return []
    found = []
    for name, value in attributes.items():
        if type(value) in (list, tuple, dict, set) and len(value) >= MANY_OBJECTS:
            items = value.values() if type(value) is dict else value
            found.append([name, type(value).__name__, len(value), type(next(iter(items))).__name__])
    return sorted(found, key=lambda each: -each[2])
