"""``diagnosis.json``: the shape that other programs rely on (``diagnosis.schema.json``)."""

from __future__ import annotations

import math
from typing import Any

import msgspec

from tdiag.model.diagnosis import Diagnosis
from tdiag.report.page import Page


def render(diagnosis: Diagnosis, page: Page) -> str:
    """The diagnosis as indented JSON."""
    return encode(diagnosis)


def encode(value: msgspec.Struct) -> str:
    """Indented JSON: fields in the model's order, mappings sorted by key.

    What is in no field of the model and no JSON type (a path in ``environment``) becomes text;
    bytes of a file name that are not UTF-8 become ``\\udcNN`` in it, and so does a number that is
    none (``"nan"``), for JSON would make it null: unmeasured.
    """
    plain = msgspec.to_builtins(value, order="deterministic", enc_hook=str)
    text = msgspec.json.encode(jsonable(plain))
    return msgspec.json.format(text, indent=2).decode() + "\n"


def jsonable(value: Any) -> Any:
    """The same value without what JSON cannot hold: lone surrogates, NaN and infinities."""
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, dict):
        return {jsonable(k): jsonable(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [jsonable(v) for v in value]
    return value
