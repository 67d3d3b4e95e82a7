"""The base of every record of the probe's."""

from __future__ import annotations

import msgspec

At = tuple[str, int, str] | None  # file, line, function


class Record(
    msgspec.Struct, tag_field="kind", tag=lambda name: name.removesuffix("Record").lower()
):
    """Base: the tag is the class name without ``Record``, in lower case."""
