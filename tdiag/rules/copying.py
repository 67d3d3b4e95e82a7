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
