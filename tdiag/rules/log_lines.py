"""Recognises the sampled lines that write logs."""

from __future__ import annotations

import linecache
import re

from tdiag.evidence.sampled import StackLine

# Modules that write logs, as they appear in the innermost frame of a sample.
WRITERS = re.compile(
    r"(?<![\w-])(tqdm/|wandb/|mlflow/|neptune/|comet_ml/|aim/|rich/|loguru/|csv\.py"
    r"|logging/__init__|logging/handlers|json/encoder|json/__init__)|tensorboard"
)
# Built-in functions that write; no sampled frame names them, so the text of the line must.
WRITES = re.compile(
    r"\bprint\(|\bjson\.dump|\.writerows?\(|\.write\(|\.flush\(|\bfsync\(|\.savefig\(|\blogger\.|\blogging\."
    r"|\.add_(scalars?|histogram|image|figure)\(|\.set_postfix\(|\bwandb\.log\("
)
# Phases in which writing belongs to another rule: loading data, saving weights.
NOT_LOGGING = ("data_wait", "checkpoint")


def logs(line: StackLine) -> bool:
    """The line writes a log, by the function called or by its own text."""
    if line.phase in NOT_LOGGING:
        return False
    text = linecache.getline(line.at.file, line.at.line)
    return bool(WRITERS.search(line.leaf) or WRITES.search(text))
