"""A trace file as blocks of uncompressed bytes."""

from __future__ import annotations

import os
import select
import stat
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from io import BufferedReader
from pathlib import Path
from types import ModuleType
from typing import Any

from tdiag.errors import RunError

fast_zlib: ModuleType = zlib
with suppress(ImportError):  # no wheel for this machine: zlib gives the same bytes, slower
    from isal import isal_zlib as fast_zlib

# isal has its own exception class, which zlib.error does not cover.
BROKEN: tuple[type[Exception], ...] = (zlib.error, fast_zlib.error)

Progress = Callable[[int, int], None]  # bytes of the file read so far, size of the file

BLOCK_BYTES = 1 << 20  # measured: larger blocks leave the cache, smaller ones cost calls
READ_BYTES = 1 << 14  # compressed bytes at a time: the most that damaged data can destroy
WRITER_WITHIN_S = 10.0  # until a pipe has its first byte: zcat takes milliseconds
GZIP_MAGIC = b"\x1f\x8b"


def packed(file: BufferedReader) -> bool:
    """Whether gzip data begins at the position of ``file``."""
    return file.peek(2)[:2] == GZIP_MAGIC


def _opened(path: Path) -> BufferedReader:
    """Open the file; a named pipe once something is written to it. Raises OSError if nothing is."""
    if not stat.S_ISFIFO(path.stat().st_mode):
        return path.open("rb")
    pipe = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # a plain open would wait for ever
    if not select.select([pipe], [], [], WRITER_WITHIN_S)[0]:
        os.close(pipe)
        raise OSError(f"nothing was written to this pipe within {WRITER_WITHIN_S:g} s")
    os.set_blocking(pipe, True)
    return os.fdopen(pipe, "rb")


class Blocks:
    """Iterates the uncompressed bytes of ``path``; gzip is recognised by its magic number.

    ``broken`` is None, or why reading ended early (truncated or damaged gzip); everything inflated
    before that was yielded.
    """

    def __init__(self, path: Path, progress: Progress | None = None) -> None:
        self.path = path
        self.broken: str | None = None
        self._progress = progress

    def __iter__(self) -> Iterator[bytes]:
        try:
            size = self.path.stat().st_size
            with _opened(self.path) as file:
                pieces = self._pieces(file, size)
                yield from self._inflate(pieces) if packed(file) else pieces
        except OSError as error:
            raise RunError(
                f"cannot read {self.path}: {error.strerror or error}",
                "give the path of a torch.profiler trace (.json or .json.gz)",
            ) from error

    def _pieces(self, file: BufferedReader, size: int) -> Iterator[bytes]:
        done = 0
        amount = READ_BYTES if packed(file) else BLOCK_BYTES
        while piece := file.read(amount):
            done += len(piece)
            yield piece
            if self._progress:
                self._progress(done, size)

    def _inflate(self, pieces: Iterator[bytes]) -> Iterator[bytes]:
        ready: list[bytes] = []
        size = 0
        for plain in self._inflated(pieces):
            ready.append(plain)
            size += len(plain)
            if size >= BLOCK_BYTES:
                yield b"".join(ready)
                ready, size = [], 0
        yield b"".join(ready)

    def _inflated(self, pieces: Iterator[bytes]) -> Iterator[bytes]:
        member: Any = fast_zlib.decompressobj(31)
        fed = False  # whether the current member has had any input
        for piece in pieces:
            waiting = piece
            while waiting:
                if member.eof:  # several gzip members one after another are one file
                    member, fed = fast_zlib.decompressobj(31), False
                try:
                    plain = member.decompress(waiting, BLOCK_BYTES)
                except BROKEN as error:
                    # Trailing bytes after a complete member are harmless.
                    self.broken = f"damaged gzip data ({error})" if fed else None
                    return
                fed = True
                yield plain
                waiting = member.unused_data if member.eof else member.unconsumed_tail
        while not member.eof and (plain := member.decompress(b"", BLOCK_BYTES)):
            yield plain
        if not member.eof:
            self.broken = "truncated gzip data"
