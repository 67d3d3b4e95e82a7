"""The child of :mod:`tdiag.trace.parallel`: blocks on stdin, their columns on stdout."""

from __future__ import annotations

import gc
import pickle
import sys

from tdiag.trace.decode import decode

LENGTH_BYTES = 8
READY = b"!"  # the first thing it says


def main() -> None:
    """Answer every ``length, block`` with ``length, pickled columns``, until stdin closes."""
    gc.disable()  # as in the reader
    sys.stdout.buffer.write(READY)
    sys.stdout.buffer.flush()
    while header := sys.stdin.buffer.read(LENGTH_BYTES):
        block = sys.stdin.buffer.read(int.from_bytes(header, "little"))
        columns = pickle.dumps(decode(block), protocol=5)
        sys.stdout.buffer.write(len(columns).to_bytes(LENGTH_BYTES, "little"))
        sys.stdout.buffer.write(columns)
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
