"""What a page carries packed, so that it stays small: its figures, and Plotly's script."""

from __future__ import annotations

import base64
import hashlib
import zlib
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path

LEVEL = 5  # 6 takes a fifth longer, 9 twice as long, for one per cent


@dataclass(frozen=True)
class Script:
    """``packed``: see :func:`pack`. ``sha256``: of the script, as a policy names it."""

    packed: str
    sha256: str


def plotly_file() -> Path | None:
    """Where Plotly's script is; None where the package is not installed as its wheel has it. It is
    found, not imported: its Python takes longer than reading the script."""
    spec = find_spec("plotly")
    folders = spec.submodule_search_locations if spec else None
    files = (Path(folder) / "package_data" / "plotly.min.js" for folder in folders or ())
    return next((file for file in files if file.is_file()), None)


@cache
def plotly() -> Script | None:
    """None as for :func:`plotly_file`."""
    file = plotly_file()
    if file is None:
        return None
    # As the browser's decoder will see it, else the digest would differ.
    text = file.read_text(encoding="utf-8").encode()
    return Script(pack(text), digest(text))


def pack(data: bytes) -> str:
    """Base64 of the zlib stream, which the page unpacks."""
    return base64.b64encode(zlib.compress(data, LEVEL)).decode()


def digest(script: bytes) -> str:
    """``sha256-…``, as in a Content-Security-Policy."""
    return "sha256-" + base64.b64encode(hashlib.sha256(script).digest()).decode()
