"""What a page carries compressed to stay small: its figures, and Plotly's script."""

from __future__ import annotations

import base64
import hashlib
import zlib
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path

LEVEL = 5  # 6 takes a fifth longer and 9 twice as long, for one percent less


@dataclass(frozen=True)
class Script:
    """``packed``: see :func:`pack`. ``sha256``: the script's digest in a content security
    policy."""

    packed: str
    sha256: str


def plotly_file() -> Path | None:
    """The path of Plotly's script; None if the package is not installed as in its wheel. The script
    is found without importing Plotly, which takes longer than reading it."""
    spec = find_spec("plotly")
    folders = spec.submodule_search_locations if spec else None
    files = (Path(folder) / "package_data" / "plotly.min.js" for folder in folders or ())
    return next((file for file in files if file.is_file()), None)


@cache
def plotly() -> Script | None:
    """Plotly's script; None in the same case as for :func:`plotly_file`."""
    file = plotly_file()
    if file is None:
        return None
    # As the browser's decoder sees it, otherwise the digest would differ.
    text = file.read_text(encoding="utf-8").encode()
    return Script(pack(text), digest(text))


def pack(data: bytes) -> str:
    """The data's zlib stream in base64; the page unpacks it."""
    return base64.b64encode(zlib.compress(data, LEVEL)).decode()


def digest(script: bytes) -> str:
    """``sha256-…``, as in a Content-Security-Policy."""
    return "sha256-" + base64.b64encode(hashlib.sha256(script).digest()).decode()
