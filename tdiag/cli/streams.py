"""tdiag's own standard streams: a missing, full or closed stream never changes a run."""

from __future__ import annotations

import os
import sys
from typing import TextIO

from tdiag.errors import RunError


def stand_in() -> None:
    """Called before anything is opened: put /dev/null in place of each missing standard stream.
    Otherwise a file of tdiag's would become stream 0, 1 or 2 of the program. tdiag's own writes to
    a missing stream still fail on stdout, where the output is wanted, and are dropped on stderr."""
    for descriptor in (0, 1, 2):
        if not _is_open(descriptor):
            os.open(os.devnull, os.O_RDWR)  # the lowest free descriptor: this one
            os.set_inheritable(descriptor, True)
    if sys.stdout is None:
        read_only = os.open(os.devnull, os.O_RDONLY)
        sys.stdout = os.fdopen(read_only, "w", closefd=False)
    if sys.stderr is None:
        sys.stderr = os.fdopen(os.open(os.devnull, os.O_WRONLY), "w")


def _is_open(descriptor: int) -> bool:
    try:
        os.fstat(descriptor)
    except OSError:
        return False
    return True


def write(stream: TextIO, text: str) -> None:
    """Write all of it now. Raises RunError if that fails, and BrokenPipeError if the reader has
    gone (``| head``), as click expects."""
    try:
        stream.write(text)
        stream.flush()
    except BrokenPipeError:
        discard(stream)
        raise
    except OSError as error:
        discard(stream)
        raise RunError(f"cannot write the report: {error.strerror}") from None


def say(line: str) -> None:
    """Print a line on stderr, or nothing if nobody can read it."""
    try:
        print(line, file=sys.stderr, flush=True)
    except OSError:
        discard(sys.stderr)


def drain(stream: TextIO) -> None:
    """Flush; drop what can no longer be written."""
    try:
        stream.flush()
    except OSError:
        discard(stream)


def discard(stream: TextIO) -> None:
    """Discard the stream's buffer and all later output: Python flushes it at exit and would turn a
    failure into exit code 120."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)
