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
from queue import SimpleQueue
from typing import Any

from tdiag.trace.decode import Block, decode
from tdiag.trace.inflate import GZIP_MAGIC
from tdiag.trace.worker import LENGTH_BYTES

# Starting the processes takes as long as decoding some 100 MB here (0.4 s); traces pack to a
# tenth and less.
PARALLEL_BYTES = 256 << 20
PARALLEL_PACKED_BYTES = 16 << 20
MAX_PROCESSES = 8  # beyond that the one inflating process is the limit
IN_FLIGHT = 2  # blocks a process: one being decoded, one waiting


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
    """``(offset, block, its columns)`` in order, decoded by as many processes as pay.

    Plain child processes rather than ``multiprocessing``: that runs the caller's main module
    again in each child, or forks a process that may have threads (a progress display).
    """
    processes = min(cores(), MAX_PROCESSES)
    waiting: deque[tuple[int, bytes, Future[Block | None]]] = deque()
    with ExitStack() as stack:
        idle: SimpleQueue[_Worker] = SimpleQueue()
        for _ in range(processes):
            idle.put(stack.enter_context(_Worker()))
        # One thread a process: it waits for its pipe while the others run.
        pool = stack.enter_context(ThreadPoolExecutor(processes))
        for offset, block in blocks:
            waiting.append((offset, block, pool.submit(_decode, idle, block)))
            if len(waiting) >= processes * IN_FLIGHT:
                first, text, columns = waiting.popleft()
                yield first, text, columns.result()
        while waiting:
            first, text, columns = waiting.popleft()
            yield first, text, columns.result()


def _decode(idle: SimpleQueue[_Worker], block: bytes) -> Block | None:
    worker = idle.get()
    try:
        return worker.decode(block)
    except (OSError, EOFError, pickle.UnpicklingError):
        return decode(block)  # the child is gone (killed, or cannot import tdiag)
    finally:
        idle.put(worker)


class _Worker:
    """A child that decodes one block at a time."""

    def __enter__(self) -> _Worker:
        self._process: subprocess.Popen[bytes] = subprocess.Popen(
            [sys.executable, "-m", "tdiag.trace.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        return self

    def decode(self, block: bytes) -> Block | None:
        send, receive = self._process.stdin, self._process.stdout
        if send is None or receive is None:
            raise EOFError
        send.write(len(block).to_bytes(LENGTH_BYTES, "little"))
        send.write(block)
        send.flush()
        found: Block | None = pickle.load(receive)
        return found

    def __exit__(self, *_: Any) -> None:
        self._process.kill()
        self._process.communicate()


def cores() -> int:
    """Cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
