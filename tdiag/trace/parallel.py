"""Decoding the blocks of one large file in several processes."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

from tdiag.trace.decode import Block, decode
from tdiag.trace.inflate import GZIP_MAGIC
from tdiag.trace.worker import LENGTH_BYTES, READY

# Starting a process takes as long as decoding some 40 MB here, while this one decodes already;
# traces pack to a twentieth.
PARALLEL_BYTES = 48 << 20
PARALLEL_PACKED_BYTES = 5 << 19
MAX_PROCESSES = 8  # beyond that the one inflating process is the limit
IN_FLIGHT = 2  # blocks a process: one being decoded, one waiting
# Results that may wait for an earlier block's, for each process: enough that this one never waits
# for another, a few megabytes in all.
AHEAD = 8


def pays_off(path: Path) -> bool:
    """Whether the file is large enough, and this machine has cores, to use processes."""
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            packed = file.read(2) == GZIP_MAGIC
    except OSError:
        return False  # reading reports it
    return cores() > 1 and size >= (PARALLEL_PACKED_BYTES if packed else PARALLEL_BYTES)


def in_processes(
    blocks: Iterable[tuple[int, bytes]],
) -> Iterator[tuple[int, bytes, Block | None]]:
    """``(offset, block, its columns)`` in order. This process decodes, too: whatever finds the
    others busy, or not yet started.

    Plain child processes rather than ``multiprocessing``: that runs the caller's main module
    again in each child, or forks a process that may have threads (a progress display).
    """
    others = min(cores(), MAX_PROCESSES) - 1
    waiting: deque[tuple[int, bytes, Future[Block | None] | Block | None]] = deque()
    with ExitStack() as stack:
        # One place a block: a worker stands here once for each that it may be given now.
        places: SimpleQueue[_Worker] = SimpleQueue()
        workers = [stack.enter_context(_Worker()) for _ in range(others)]
        # One thread a process: it waits for its pipe while the others run.
        pools = [stack.enter_context(ThreadPoolExecutor(1)) for _ in workers]
        for worker, pool in zip(workers, pools, strict=True):
            worker.pool = pool
            pool.submit(worker.started, places)
        stack.callback(_kill, workers)
        for offset, block in blocks:
            try:
                worker = places.get_nowait()
            except Empty:
                waiting.append((offset, block, decode(block)))
            else:
                waiting.append((offset, block, worker.pool.submit(_decode, worker, block, places)))
            while len(waiting) > others * AHEAD or (waiting and _done(waiting[0][2])):
                yield _result(*waiting.popleft())
        while waiting:
            yield _result(*waiting.popleft())


def _done(columns: Future[Block | None] | Block | None) -> bool:
    return not isinstance(columns, Future) or columns.done()


def _result(
    offset: int, block: bytes, columns: Future[Block | None] | Block | None
) -> tuple[int, bytes, Block | None]:
    return offset, block, columns.result() if isinstance(columns, Future) else columns


def _decode(worker: _Worker, block: bytes, places: SimpleQueue[_Worker]) -> Block | None:
    try:
        columns = worker.decode(block)
    except (OSError, EOFError, pickle.UnpicklingError):
        return decode(block)  # the child is gone: it is given no more
    places.put(worker)
    return columns


def _kill(workers: Iterable[_Worker]) -> None:
    for worker in workers:
        worker.kill()


class _Worker:
    """A child that decodes one block at a time."""

    pool: ThreadPoolExecutor

    def __enter__(self) -> _Worker:
        self._process: subprocess.Popen[bytes] = subprocess.Popen(
            [sys.executable, "-m", "tdiag.trace.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        return self

    def started(self, places: SimpleQueue[_Worker]) -> None:
        """Wait until it says that it is there."""
        assert self._process.stdout is not None
        if self._process.stdout.read(len(READY)) == READY:
            for _ in range(IN_FLIGHT):
                places.put(self)

    def decode(self, block: bytes) -> Block | None:
        send, receive = self._process.stdin, self._process.stdout
        assert send is not None
        assert receive is not None
        send.write(len(block).to_bytes(LENGTH_BYTES, "little"))
        send.write(block)
        send.flush()
        found: Block | None = pickle.load(receive)
        return found

    def kill(self) -> None:
        self._process.kill()

    def __exit__(self, *_: Any) -> None:
        self.kill()
        self._process.communicate()


def cores() -> int:
    """Cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
