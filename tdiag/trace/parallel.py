"""Decodes the blocks of one large file in several processes."""

from __future__ import annotations

import os
import pickle
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import IO, Any

from tdiag.trace import child
from tdiag.trace.decode import Block, decode
from tdiag.trace.inflate import packed
from tdiag.trace.worker import NUMBER_BYTES, READY

# Starting a program takes as long as decoding about 40 MB here, while this process already decodes;
# a fork is worth it from 15 MB on (15 to 80 MB, interleaved: 0.61 to 0.91 of the time; 9 MB: 1.1).
PARALLEL_BYTES = (12 if child.FORKS else 48) << 20
PACKED = 20  # traces compress to a twentieth
MAX_PROCESSES = 8  # beyond that the one inflating process is the limit
# Blocks in flight per process: one is decoded, the others wait, because the thread that sends the
# next one may get the interpreter's lock only after 5 ms. With 2, a child was idle a fifth of the
# time; with 8, this process was.
IN_FLIGHT = 4
# Linux lets any user have a pipe of this size (pipe-max-size); a block's columns take half of it.
PIPE_BYTES = 1 << 20
# Results per process that may wait for an earlier block: enough that this process never waits, a
# few megabytes in total.
AHEAD = 8


def pays_off(path: Path) -> bool:
    """Whether the file is large enough, and this machine has enough cores, to use processes."""
    if cores() == 1 or not path.is_file():  # a pipe can be opened only once
        return False
    try:
        with path.open("rb") as file:
            least = PARALLEL_BYTES // PACKED if packed(file) else PARALLEL_BYTES
        return path.stat().st_size >= least
    except OSError:
        return False  # reading reports it


def in_processes(
    path: Path, blocks: Iterable[tuple[int, bytes]]
) -> Iterator[tuple[int, bytes, Block | None]]:
    """``(offset, block, its columns)`` of the blocks of ``path``, in order. This process decodes
    too, whenever the others are busy or not yet started.
    """
    others = min(cores(), MAX_PROCESSES) - 1
    waiting: deque[tuple[int, bytes, Future[Block | None] | Block | None]] = deque()
    with ExitStack() as stack:
        # Free places: a worker is in this queue once for each block that it can take now.
        places: SimpleQueue[_Worker] = SimpleQueue()
        with path.open("rb") as file:
            readable = not packed(file)
        workers = [
            stack.enter_context(_Worker(places, path if readable else None)) for _ in range(others)
        ]
        stack.callback(_kill, workers)
        for offset, block in blocks:
            try:
                worker = places.get_nowait()
            except Empty:
                waiting.append((offset, block, decode(block)))
            else:
                waiting.append((offset, block, worker.decode(offset, block)))
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


def _kill(workers: Iterable[_Worker]) -> None:
    for worker in workers:
        worker.kill()


class _Worker:
    """A child that decodes blocks. It is in ``places`` once for each block that it can take now.
    It reads them from ``path`` itself, if given: a pipe would take a fifth of the whole time.

    One thread sends and another receives, so the child finds its next block while this process
    holds the interpreter's lock.
    """

    def __init__(self, places: SimpleQueue[_Worker], path: Path | None) -> None:
        self._places = places
        self._path = path
        self._sending, self._receiving = ThreadPoolExecutor(1), ThreadPoolExecutor(1)

    def __enter__(self) -> _Worker:
        self._process = child.start(str(self._path) if self._path else None)
        self._send, self._receive = self._process.stdin, self._process.stdout
        _widen(self._receive)
        self._receiving.submit(self._started)
        return self

    def decode(self, offset: int, block: bytes) -> Future[Block | None]:
        self._sending.submit(self._give, offset, block)
        return self._receiving.submit(self._take, block)

    def _started(self) -> None:
        if self._receive.read(len(READY)) == READY:
            for _ in range(IN_FLIGHT):
                self._places.put(self)

    def _give(self, offset: int, block: bytes) -> None:
        with suppress(OSError):  # the child is gone; the other thread notices
            for number in (offset, len(block)):
                self._send.write(number.to_bytes(NUMBER_BYTES, "little"))
            if not self._path:
                self._send.write(block)
            self._send.flush()

    def _take(self, block: bytes) -> Block | None:
        try:
            header = self._receive.read(NUMBER_BYTES)
            found: Block | None = pickle.loads(self._receive.read(int.from_bytes(header, "little")))
        except (OSError, EOFError, pickle.UnpicklingError):
            self.kill()  # the child is gone or sends something else: it gets no more blocks
            return decode(block)
        self._places.put(self)
        return found

    def kill(self) -> None:
        self._process.kill()

    def __exit__(self, *_: Any) -> None:
        self.kill()
        self._sending.shutdown()
        self._receiving.shutdown()
        for pipe in (self._send, self._receive):
            with suppress(OSError):  # blocks that it did not get
                pipe.close()
        self._process.wait()


def _widen(pipe: IO[bytes]) -> None:
    """A pipe large enough that the child never waits for its reader."""
    with suppress(ImportError, AttributeError, OSError):  # other systems, or a lower limit
        import fcntl

        fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, PIPE_BYTES)


def cores() -> int:
    """Cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
