"""Recognises the sampled lines that write logs, and those that make what is written."""

from __future__ import annotations

import linecache
from collections import defaultdict

from tdiag.evidence.sampled import WRITERS, WRITES, CallTrees, StackLine, Stacks
from tdiag.evidence.torch_ops import Ops
from tdiag.model.threshold import MAJORITY_FRAC
from tdiag.rules.loop_lines import AFTER, beside_the_step

# Phases in which writing belongs to another rule: loading data, saving weights.
NOT_LOGGING = ("data_wait", "checkpoint")


def logs(line: StackLine) -> bool:
    """The line writes a log, by the function called or by its own text."""
    if line.phase in NOT_LOGGING:
        return False
    text = linecache.getline(line.at.file, line.at.line)
    return bool(WRITERS.search(line.leaf) or WRITES.search(text))


def made_for_logs(stacks: Stacks, ops: Ops | None, trees: CallTrees | None) -> list[StackLine]:
    """Lines after the step that write nothing, in functions that spend most of their time there on
    writing: whoever logs less often runs them less often, too."""
    functions: dict[tuple[str, str], list[StackLine]] = defaultdict(list)
    for line in beside_the_step(AFTER, stacks, ops, trees):
        functions[line.at.file, line.at.function].append(line)
    found = []
    for lines in functions.values():
        others = [line for line in lines if not logs(line)]
        rest = sum(line.self_frac for line in others)
        if rest < (1 - MAJORITY_FRAC) * sum(line.self_frac for line in lines):
            found += others
    return found
