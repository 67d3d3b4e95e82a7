"""Makes names from elsewhere harmless and fits them to a line: paths, messages, values."""

from __future__ import annotations

import re
import unicodedata
from pathlib import Path

from rich.cells import cell_len, set_cell_size
from rich.style import Style
from rich.text import Text

from tdiag.model.place import Place
from tdiag.probe.wire import CELLS

#: Stands for a space at which no line may break. Private use, so :func:`inert` removes any other.
GLUE = "\ue000"

# Control, format (bidirectional overrides, zero width), surrogate, private, unassigned, line and
# paragraph separators: everything that could move the cursor, or hide or reorder text.
_ACTIVE = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}

_VALUE_AND_UNIT = re.compile(r"(?<=\d) (?=(?:ns|µs|us|ms|s|B|[KMGT]i?B|GB/s|%|×|per)(?!\w))")
# Calls with their arguments, and keyword arguments, written without backticks.
_CODE = re.compile(r"[A-Za-z_][\w.]*\((?:[^()]|\([^()]*\))*\)|\b[A-Za-z_]\w*=[\w.\"'-]*\w")
# Parts that many kernel names share: namespaces, ATen's wrapper around the element's function, and
# the sizes of its unrolling. They are removed only from a name that is too long.
_COMMON = re.compile(
    r"^void |at::native::|at::|\(anonymous namespace\)::|gpu_kernel_impl(_nocast)?<|(?<=<)(\d+, )+"
)


def _escaped(char: str) -> str:
    if unicodedata.category(char) not in _ACTIVE:
        return char
    return char.encode("unicode_escape").decode("ascii")


def inert(text: object, limit: int = 400) -> str:
    """``text`` as one line without active control characters, at most ``limit`` characters.

    Control and similar characters become visible escapes (``\\x1b``, ``\\n``).
    """
    plain = "".join(map(_escaped, str(text)[: limit + 1]))
    return plain if len(plain) <= limit else plain[: limit - 1] + "…"


def prose(text: object, limit: int = 1200) -> str:
    """:func:`inert`, and no line break between a number and its unit."""
    return _VALUE_AND_UNIT.sub(GLUE, inert(" ".join(str(text).split()), limit))


def code(text: str, style: str, base: str = "") -> Text:
    """Prose in style ``base``; text between backticks, or that reads as code, in ``style``."""
    shown = prose(text)
    parts = shown.split("`")
    if len(parts) % 2 == 0:  # an unpaired backtick is an ordinary character
        parts = [shown]
    result = Text.assemble(*[(p, style if i % 2 else base) for i, p in enumerate(parts)])
    if len(parts) == 1:
        result.highlight_regex(_CODE, style)
    return result


def clip(text: str, width: int) -> str:
    """``text`` cut at its end to ``width`` characters."""
    return text if cell_len(text) <= width else set_cell_size(text, max(1, width) - 1) + "…"


def clip_head(text: str, width: int) -> str:
    """``text`` cut at its start to ``width`` characters: the end of a path matters most."""
    if cell_len(text) <= width:
        return text
    kept = text[-max(1, width) :]
    while cell_len(kept) > width - 1:
        kept = kept[1:]
    return "…" + kept


def clip_middle(text: str, width: int) -> str:
    """``text`` without its middle, ``width`` characters: both ends of a kernel's name matter, the
    first most."""
    if cell_len(text) <= width:
        return text
    tail = clip_head(text, max(1, width // 3))
    return set_cell_size(text, max(1, width) - cell_len(tail)).rstrip() + tail


def kernel_name(name: str, room: int) -> str:
    """A name too long for ``room`` without its least useful parts: a C++ function's argument list,
    and the parts that many kernels share."""
    if len(name) <= room:
        return name
    depth = 0
    for at, char in enumerate(shorter := _COMMON.sub("", name)):
        depth += (char == "<") - (char == ">")
        # "Memcpy HtoD (Pinned -> Device)" has no argument list.
        if char == "(" and depth <= 0 and shorter[at - 1 : at].strip():
            return shorter[:at]
    return shorter


def relative(file: str, base: Path | None) -> str:
    """``file`` relative to ``base``; unchanged if it is not below it."""
    path = Path(file)
    if path.parent.name == CELLS:
        return path.stem  # In[5]
    return str(path.relative_to(base)) if base and path.is_relative_to(base) else file


def spot(place: Place, base: Path | None) -> str:
    """``train.py:41`` as one harmless line; line 0 means unknown and is left out."""
    line = f":{place.line}" if place.line > 0 else ""
    return inert(relative(place.file, base)) + line


def location(place: Place, base: Path | None, width: int, style: str) -> Text:
    """``train.py:41``, at most ``width`` characters, linked to the file (OSC 8, only with colour).

    Line 0 means unknown and is left out.
    """
    return linked(relative(place.file, base), place, width, style)


def linked(name: str, place: Place, width: int, style: str) -> Text:
    """:func:`location` with a ``name`` for the file."""
    line = f":{place.line}" if place.line > 0 else ""
    shown = clip_head(inert(name), width - len(line)) + line
    path = Path(place.file)
    link = path.as_uri() if path.is_absolute() else None
    # The base style stays plain; otherwise Rich would extend the link through the padding.
    return Text.assemble((shown, Style.parse(style) + Style(link=link)), no_wrap=True)
