"""Decoding the blocks of one large file in several processes."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

from tdiag.trace.decode import Block, decode
from tdiag.trace.inflate import GZIP_MAGIC

# Starting a process and its numpy takes about 0.3 s, as long as decoding some 100 MB here;
# traces pack to a tenth and less.
PARALLEL_BYTES = 400 << 20
PARALLEL_PACKED_BYTES = 24 << 20
MAX_PROCESSES = 8  # beyond that the one inflating process is the limit (measured 1 GB/s)
IN_FLIGHT = 4  # blocks a process: enough that none waits, few enough to stay small


def pays_off(path: Path) -> bool:
    """Whether the file is large enough, and this machine has cores, to use processes."""
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            packed = file.read(2) == GZIP_MAGIC
    except OSError:
        return False  # reading reports it
    return _cores() > 1 and size >= (PARALLEL_PACKED_BYTES if packed else PARALLEL_BYTES)


def in_processes(
    blocks: Iterable[tuple[int, bytes]],
) -> Iterator[tuple[int, bytes, Block | None]]:
    """``(offset, block, its columns)`` in order, decoded by as many processes as pay."""
    processes = min(_cores(), MAX_PROCESSES)
    waiting: deque[tuple[int, bytes, Future[Block | None]]] = deque()
    # spawn: the caller may have threads (a progress display), which fork does not survive.
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        for offset, block in blocks:
            waiting.append((offset, block, pool.submit(decode, block)))
            if len(waiting) >= processes * IN_FLIGHT:
                first, text, columns = waiting.popleft()
                yield first, text, columns.result()
        for first, text, columns in waiting:
            yield first, text, columns.result()


def _cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
