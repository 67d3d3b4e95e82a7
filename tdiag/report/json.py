"""``diagnosis.json``: the shape that other programs rely on (``diagnosis.schema.json``)."""

from __future__ import annotations

from typing import Any

import msgspec

from tdiag.diagnose.model import Diagnosis
from tdiag.report.page import Page


def render(diagnosis: Diagnosis, page: Page) -> str:
    """The diagnosis as indented JSON: fields in the model's order, mappings sorted by key.

    What is in no field of the model and no JSON type (a path in ``environment``) becomes text;
    bytes of a file name that are not UTF-8 become ``\\xNN`` in it.
    """
    plain = msgspec.to_builtins(diagnosis, order="deterministic", enc_hook=str)
    text = msgspec.json.encode(_utf8(plain))
    return msgspec.json.format(text, indent=2).decode() + "\n"


def _utf8(value: Any) -> Any:
    """The same value with every lone surrogate written out: JSON cannot hold one."""
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, dict):
        return {_utf8(k): _utf8(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_utf8(v) for v in value]
    return value
