"""The data of a document as JSON: the format that other programs rely on.

A diagnosis has ``diagnosis.schema.json``, a comparison ``comparison.schema.json``, a
scaling report ``scaling.schema.json``.
"""

from __future__ import annotations

import math
from typing import Any

import msgspec

from tdiag.report.document import Document
from tdiag.report.page import Page


def render(document: Document, page: Page) -> str:
    """Indented; fields in the model's order, mappings sorted by key."""
    return encode(document.data)


def encode(value: Any) -> str:
    """Indented JSON: fields in the model's order, mappings of a struct sorted by key.

    A value that is neither a model field nor a JSON type (a path in ``environment``) becomes text.
    Bytes of a file name that are not UTF-8 become ``\\udcNN``. A number that is NaN becomes the
    text ``"nan"``, because JSON's null would mean "not measured".
    """
    if not isinstance(value, dict):
        value = msgspec.to_builtins(value, order="deterministic", enc_hook=str)
    return msgspec.json.format(msgspec.json.encode(jsonable(value)), indent=2).decode() + "\n"


def jsonable(value: Any) -> Any:
    """The same value without what JSON cannot represent: lone surrogates, NaN and infinities."""
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, dict):
        return {jsonable(k): jsonable(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [jsonable(v) for v in value]
    return value
