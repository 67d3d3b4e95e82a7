"""Lines that write logs, told from the other lines that samples name."""

from __future__ import annotations

import linecache
import re

from tdiag.evidence.kinds import StackLine

# Modules that write logs, as the innermost frame of a sample names them.
WRITERS = re.compile(
    r"tqdm/|tensorboard|wandb/|mlflow/|neptune/|comet_ml/|aim/|rich/|logging/__init__|logging/handlers"
    r"|json/encoder|json/__init__|csv\.py|loguru/"
)
# Lines that write by a built-in function, which no sampled frame names.
WRITES = re.compile(
    r"\bprint\(|\bjson\.dump|\.writerows?\(|\.write\(|\.flush\(|\bfsync\(|\.savefig\(|\blogger\.|\blogging\."
    r"|\.add_(scalars?|histogram|image|figure)\(|\.set_postfix\(|\bwandb\.log\("
)
# Where writing belongs to something else that has a rule: loading data, saving weights.
NOT_LOGGING = ("data_wait", "checkpoint")


def logs(line: StackLine) -> bool:
    """The line writes a log, by what was called under it or by its own text."""
    if line.phase in NOT_LOGGING:
        return False
    text = linecache.getline(line.at.file, line.at.line)
    return bool(WRITERS.search(line.leaf) or WRITES.search(text))
