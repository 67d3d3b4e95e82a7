"""Starts :mod:`tdiag.trace.worker`: by forking if that is safe, because it is fastest."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import warnings
from contextlib import suppress
from dataclasses import dataclass
from typing import IO, Protocol

from tdiag.children import program
from tdiag.trace.worker import serve

# A forked child starts at once; a new program has to import everything first. The child needs no
# lock that another thread may hold. macOS forbids forking a process that has threads.
FORKS = sys.platform == "linux"


class Child(Protocol):
    stdin: IO[bytes]  # to it
    stdout: IO[bytes]  # from it

    def kill(self) -> None: ...

    def wait(self) -> object: ...


def start(path: str | None) -> Child:
    """A process that decodes blocks: of the file ``path``, or, without one, those sent to it."""
    return _fork(path) if FORKS else _Program(path)


class _Program(subprocess.Popen[bytes]):
    """Not ``multiprocessing``: that runs the caller's main module again in each child."""

    stdin: IO[bytes]
    stdout: IO[bytes]

    def __init__(self, path: str | None) -> None:
        super().__init__(
            [*program("tdiag.trace.worker"), *([path] if path else [])],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )


@dataclass
class _Forked:
    pid: int
    stdin: IO[bytes]
    stdout: IO[bytes]

    def kill(self) -> None:
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)

    def wait(self) -> object:
        with suppress(ChildProcessError):
            return os.waitpid(self.pid, 0)
        return None


def _fork(path: str | None) -> _Forked:
    blocks_out, blocks_in = os.pipe()
    columns_out, columns_in = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # that threads are running, from 3.12
        pid = os.fork()
    if not pid:
        try:
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent reports the interrupt
            for number in (signal.SIGTERM, signal.SIGHUP):  # the parent's handlers are its own
                signal.signal(number, signal.SIG_DFL)
            os.close(blocks_in)  # otherwise the child would never see the end of its input
            os.close(columns_out)
            serve(os.fdopen(blocks_out, "rb"), os.fdopen(columns_in, "wb"), path)
        finally:
            os._exit(0)  # the parent's exit handlers and buffers must not run here
    os.close(blocks_out)
    os.close(columns_in)
    return _Forked(pid, os.fdopen(blocks_in, "wb"), os.fdopen(columns_out, "rb"))
