"""The child of :mod:`tdiag.trace.parallel`: receives blocks and returns their columns."""

from __future__ import annotations

import gc
import pickle
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import IO

from tdiag.trace.decode import decode

NUMBER_BYTES = 8
READY = b"!"  # its first message


def serve(source: IO[bytes], sink: IO[bytes], path: str | None) -> None:
    """Answer every block with ``length, pickled columns``, until ``source`` closes. A block arrives
    as ``offset, length``: of the file ``path``, or, without one, followed by its text."""
    gc.disable()  # as in the reader
    with ExitStack() as stack:
        file = stack.enter_context(Path(path).open("rb")) if path else None
        sink.write(READY)
        sink.flush()
        while offset := source.read(NUMBER_BYTES):
            length = _number(source.read(NUMBER_BYTES))
            if file:
                file.seek(_number(offset))
            columns = pickle.dumps(decode((file or source).read(length)), protocol=5)
            sink.write(len(columns).to_bytes(NUMBER_BYTES, "little"))
            sink.write(columns)
            sink.flush()


def _number(field: bytes) -> int:
    return int.from_bytes(field, "little")


if __name__ == "__main__":
    serve(sys.stdin.buffer, sys.stdout.buffer, sys.argv[1] if sys.argv[1:] else None)
