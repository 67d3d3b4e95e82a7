"""Recognises the sampled lines that write logs."""

from __future__ import annotations

import linecache

from tdiag.evidence.sampled import WRITERS, WRITES, StackLine

# Phases in which writing belongs to another rule: loading data, saving weights.
NOT_LOGGING = ("data_wait", "checkpoint")


def logs(line: StackLine) -> bool:
    """The line writes a log, by the function called or by its own text."""
    if line.phase in NOT_LOGGING:
        return False
    return bool(WRITERS.search(line.leaf) or writes(line))


def writes(line: StackLine) -> bool:
    """The line's own text writes, no library on its behalf."""
    return bool(WRITES.search(linecache.getline(line.at.file, line.at.line)))
