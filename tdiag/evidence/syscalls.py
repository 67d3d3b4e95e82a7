"""What the program asked of the system, as strace counted it."""

from __future__ import annotations

from tdiag.model.kind import Kind


class SyscallRow(Kind, frozen=True, kw_only=True):
    """One system call, per step. ``ns``: wall time inside it, summed over all threads."""

    name: str
    calls: float
    errors: float
    ns: float


class Syscalls(Kind, frozen=True, kw_only=True):
    """``strace -f -c -w`` of the training process, its threads and its workers, largest time
    first. ``steps``: of window ``syscalls``; what is counted while strace attaches and leaves is
    in it."""

    steps: int
    rows: tuple[SyscallRow, ...]
