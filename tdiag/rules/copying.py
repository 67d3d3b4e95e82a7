"""What leaving out a copy of a tensor saves, beside the time of the call that copies."""

from __future__ import annotations

from tdiag.model.threshold import Threshold

SAVED_HIGH = Threshold(
    1.25,
    "times the time of the call that copies",
    "Measured, reading rows of a table of 5 to 77 MB or of its copy, or training on them: at most"
    " 1.26 (benchmarks/rule_constants.py copying.SAVED_HIGH), as memory must be given back and a"
    " copy takes the caches from what follows.",
)
LARGE_NS = Threshold(
    5e6,
    "ns",
    "Heuristic: between the times of copying 38 MB, for which glibc maps new memory each time, as"
    " above 32 MiB, 10 to 17 ms, and 15 MB, 0.6 to 1.1 ms (torch 2.13, one and two threads).",
)
SAVED_LARGE_HIGH = Threshold(
    1.6,
    "times the time of the call that copies",
    "Heuristic: two whole trainings that copied 46 and 77 MB in each step saved 1.45 times;"
    " in use: some more.",
)


def saved_high(ns: float) -> float:
    """The largest saving, in times of the ``ns`` that copies take per step."""
    return SAVED_LARGE_HIGH if ns >= LARGE_NS else SAVED_HIGH
