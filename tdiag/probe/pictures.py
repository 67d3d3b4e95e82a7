"""JPEG pictures that Pillow decodes in a fetch, and whether they are then scaled down.

Pillow can decode a JPEG at 1/2, 1/4 or 1/8 of its size (``Image.draft``). This was possible for a
picture that was decoded in full and then scaled as a whole to at most half its size.
"""

from __future__ import annotations

import functools
import sys
import threading
import time
from typing import Any

from . import places
from .patches import Patches, hidden

SCALES = (8, 4, 2)  # of Pillow's JPEG decoder, besides full size
_cpu = time.thread_time_ns


class DecodeWatch:
    """What one thread decodes during a fetch; wraps two methods of Pillow during that time."""

    def __init__(self) -> None:
        self.patches = Patches()
        self.forget()

    def forget(self) -> None:
        self.decoded = 0
        self.decode_ns = 0  # of all pictures so far
        # Size, ns, place, and the thread's CPU clock at the end of decoding.
        self.last: tuple[tuple[int, int], int, Any, int] | None = None
        # (scale, scale for twice the width and height) → pictures, ns decoding, ns resizing, and ns
        # of everything in between
        self.shrunk: dict[tuple[int, int], list[int]] = {}
        self.first: dict[str, Any] = {}

    def begin(self) -> None:
        self.patches.undo()  # an earlier fetch raised
        self.forget()
        image: Any = getattr(sys.modules.get("PIL.Image"), "Image", None)
        file: Any = getattr(sys.modules.get("PIL.ImageFile"), "ImageFile", None)
        self.thread = threading.get_ident()
        if hasattr(image, "resize") and hasattr(file, "load"):
            self.patches.set(file, "load", self._watched_load(file.load))
            self.patches.set(image, "resize", self._watched_resize(image.resize))

    def end(self) -> dict[str, Any] | None:
        """`decoded` (JPEG pictures), `shrunk` [[scale, careful scale, pictures, ns decoding, ns
        resizing, ns between the two], …] and, for the first of these, `at`, `size` and `to`; None
        without a picture."""
        self.patches.undo()
        if not self.decoded:
            return None
        shrunk = [[*scales, *sums] for scales, sums in sorted(self.shrunk.items())]
        return {"decoded": self.decoded, "shrunk": shrunk, **self.first}

    def _watched_load(self, original: Any) -> Any:
        @functools.wraps(original)
        def load(image: Any, *args: Any, **kwargs: Any) -> Any:
            pending = threading.get_ident() == self.thread and getattr(image, "tile", None)
            if not pending or getattr(image, "format", None) != "JPEG":
                return original(image, *args, **kwargs)
            whole = not getattr(image, "decoderconfig", ())  # draft() was not called
            began = _cpu()
            result = original(image, *args, **kwargs)
            took = _cpu() - began
            self.decoded += 1
            self.decode_ns += took
            at = None if self.first else places.caller()
            self.last = (image.size, took, at, began + took) if whole else None
            return result

        return hidden(load)

    def _watched_resize(self, original: Any) -> Any:
        @functools.wraps(original)
        def resize(image: Any, *args: Any, **kwargs: Any) -> Any:
            if threading.get_ident() != self.thread:
                return original(image, *args, **kwargs)
            before, began = self.decode_ns, _cpu()  # it may decode first
            result = original(image, *args, **kwargs)
            took = _cpu() - began - (self.decode_ns - before)
            part = len(args) > 2 or kwargs.get("box") is not None
            if self.last is not None and image.size == self.last[0] and not part:
                self._resized(result.size, began, took)
            return result

        return hidden(resize)

    def _resized(self, to: tuple[int, int], began: int, resize_ns: int) -> None:
        """The last decoded picture, or an image made from it in its size, now has size ``to``."""
        assert self.last is not None
        size, decode_ns, at, decoded = self.last
        self.last = None
        scale = draft_scale(size, to)
        if scale < 2:
            return
        if not self.first:
            self.first = {"at": at, "size": list(size), "to": list(to)}
        careful = draft_scale(size, (2 * to[0], 2 * to[1]))
        sums = self.shrunk.setdefault((scale, careful), [0, 0, 0, 0])
        for place, value in enumerate((1, decode_ns, resize_ns, max(0, began - decoded))):
            sums[place] += value


def draft_scale(size: tuple[int, int], to: tuple[int, int]) -> int:
    """The number by which ``draft(None, to)`` divides width and height."""
    fits = min(size[0] // max(1, to[0]), size[1] // max(1, to[1]))
    return next((scale for scale in SCALES if scale <= fits), 1)
