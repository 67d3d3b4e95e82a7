"""The child of :mod:`tdiag.trace.parallel`: blocks come on stdin, their columns go to stdout."""

from __future__ import annotations

import gc
import pickle
import sys
from contextlib import ExitStack
from pathlib import Path

from tdiag.trace.decode import decode

NUMBER_BYTES = 8
READY = b"!"  # the first thing it says


def main() -> None:
    """Answer every block with ``length, pickled columns``, until stdin closes. A block comes as
    ``offset, length``: of the file that the argument names, or followed by its text if none is."""
    gc.disable()  # as in the reader
    with ExitStack() as stack:
        file = stack.enter_context(Path(sys.argv[1]).open("rb")) if sys.argv[1:] else None
        sys.stdout.buffer.write(READY)
        sys.stdout.buffer.flush()
        while offset := sys.stdin.buffer.read(NUMBER_BYTES):
            length = _number(sys.stdin.buffer.read(NUMBER_BYTES))
            if file:
                file.seek(_number(offset))
            columns = pickle.dumps(decode((file or sys.stdin.buffer).read(length)), protocol=5)
            sys.stdout.buffer.write(len(columns).to_bytes(NUMBER_BYTES, "little"))
            sys.stdout.buffer.write(columns)
            sys.stdout.buffer.flush()


def _number(field: bytes) -> int:
    return int.from_bytes(field, "little")


if __name__ == "__main__":
    main()
