"""Which of the user's lines a phase of the step spends its time on, by samples."""

from __future__ import annotations

from tdiag.evidence.sampled import StackLine, Stacks
from tdiag.evidence.steps import Budget
from tdiag.evidence.torch_ops import Ops
from tdiag.model.threshold import MAJORITY_FRAC
from tdiag.rules.thresholds import MIN_SAMPLES

# Innermost frames of reading a tensor in Python: ``print(loss)``, ``f"{loss}"``.
TENSOR_METHODS = ("(torch/_tensor.py)", "(torch/_tensor_str.py)")


def phase_of(line: StackLine, ops: Ops | None) -> str:
    """Where its samples show no phase: that of most time in the line's torch calls; else ""."""
    if line.phase or ops is None:
        return line.phase
    here = [x for x in ops.lines if (x.at.file, x.at.line) == (line.at.file, line.at.line)]
    return max(here, key=lambda x: x.elapsed_ns).phase if here else ""


def waits_for_device(line: StackLine, budget: Budget, ops: Ops | None) -> bool:
    """The line reads a value from the device, and its samples end there: the host waits for work
    that was launched before, which costs nothing itself (what the device idles after it: TD401)."""
    if not budget.has_device or ops is None:
        return False
    inside = line.own_frac > MAJORITY_FRAC * line.self_frac or line.leaf.endswith(TENSOR_METHODS)
    here = (line.at.file, line.at.line)
    return inside and any(x.conversions for x in ops.lines if (x.at.file, x.at.line) == here)


def main_line(phase: str, stacks: Stacks | None, ops: Ops | None) -> StackLine | None:
    """The line with most of the phase's samples; None where no line has more than half of them, or
    too few samples were taken."""
    if stacks is None or stacks.samples < MIN_SAMPLES:
        return None
    mine = [line for line in stacks.training if phase_of(line, ops) == phase]
    top = max(mine, key=lambda line: line.self_frac, default=None)
    whole = sum(line.self_frac for line in mine)
    return top if top is not None and top.self_frac > MAJORITY_FRAC * whole else None
