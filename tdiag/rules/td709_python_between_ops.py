"""Python between the torch calls

## What it measures
The samples of single user lines beside forward, loss and optimizer whose innermost frame is that
line itself, less the time of the torch calls that the same line makes: what is left is Python, or
what it calls outside torch. Samples, torch calls and clean steps come from different windows. So a
line is named only if its torch calls, taken as many times as long as those of the other lines were,
take less than a quarter of its time, and if Python is left over even were all of the time that the
sampler added to the steps spent in this line.

## Why it is slow
The interpreter takes tens of nanoseconds for every name and number it touches, one after the other,
and the device (or torch's threads) waits for it.

## What to do
Move what does not change out of the step, replace loops over numbers by one tensor expression, and
keep files, locks and sleeps out of it.

## How the gain is computed
High end: the lines' time outside torch calls, as well as so many samples tell it. Low end: half of
what is left without the time that the sampler added, since what replaces a loop takes time as well;
nothing with a device, which may work meanwhile.

## When this advice is wrong
A line that samples catch in a C extension of your own (a tokenizer, a simulator) does real work: it
belongs into a loader worker. Compiling a function does not speed up what is not torch.
"""

from __future__ import annotations

from statistics import median

from tdiag.evidence.kinds import Budget, Ops, StackLine, Stacks
from tdiag.evidence.store import Evidence
from tdiag.model.diagnosis import Fix
from tdiag.rules.base import Abstain, Found, Gain, same_function, where
from tdiag.rules.examples import MS, at, budget, op_line, ops, stack, stacks
from tdiag.rules.log_lines import logs
from tdiag.rules.measures import count, known_to, ns
from tdiag.units import duration, percent

CODE = "TD709"
NAME = "python-between-ops"
CLASS = "overhead"

# Under so many samples a share of 2 % (the least that is reported) is two samples or fewer.
MIN_SAMPLES = 100
# Torch calls take less than a quarter of the line's time: samples and calls come from different
# windows, in one of which the machine may be twice as busy as in the other.
OUTSIDE_FRAC = 0.75
# ... and where other lines show that it was more than twice as busy, nothing is said of a line that
# makes torch calls itself.
COMPARABLE_TIMES = 2.0
# Of at least 100 samples, such a share is one or more; lines with less tell no ratio.
SPEAKING_FRAC = 0.01
# What replaces a Python loop takes time too; half is kept for the low end. Ours.
SAVING_LOW_FRAC = 0.5
# Phases in which the training thread runs the user's own lines, as calls are counted by phase.
PHASES = ("prepare", "forward", "loss", "optimizer")
# Where the same time lies in the budget of a run with a device.
WITH_DEVICE = ("launch", "python_loss", "other", "optimizer")


def check(budget: Budget, stacks: Stacks, ops: Ops) -> Found | None:
    if stacks.samples < MIN_SAMPLES:
        raise Abstain(f"only {stacks.samples} samples of the training thread were taken")
    mine = [x for x in stacks.training if _own(x) and not logs(x)]
    outside = {x: _outside(x, budget, stacks, ops) for x in mine}
    lines = [x for x in outside if outside[x] > OUTSIDE_FRAC * x.own_frac * budget.step_ns]
    lines = [x for x in lines if outside[x] > _added(x, stacks, budget)]
    lines = [x for x in lines if _phases(x, ops)]
    apart = [
        x for x in lines if _calling(x, ops) and _longer(x, budget, stacks, ops) > COMPARABLE_TIMES
    ]
    lines = [x for x in lines if x not in apart]
    phases = {phase for line in lines for phase in _phases(line, ops)}
    if apart and not lines:
        raise Abstain("torch calls took several times as long when sampled as when counted")
    if not lines:
        return None
    total = sum(outside[x] for x in lines)
    top = max(lines, key=lambda x: outside[x])
    sampled = sum(x.own_frac for x in lines)
    added = max(_added(x, stacks, budget) for x in lines)
    least, most = (
        max(0.0, total + (known - sampled) * budget.step_ns)
        for known in known_to(sampled, stacks.samples)
    )
    return Found(
        summary=(
            f"{duration(total)} a step ({percent(total / budget.step_ns)}) passes between torch"
            f" calls, in Python or what it calls, most of it{where(top.at)} in"
            f" {top.at.function} ({duration(outside[top])})."
        ),
        evidence=(
            *(ns(f"outside torch calls{where(x.at)}", outside[x], "sample") for x in lines[:3]),
            ns(f"torch calls{where(top.at)}", _calling(top, ops), "ops"),
            count("samples of the training thread", stacks.samples, "sample"),
        ),
        fix=Fix(
            f"Take the work{where(top.at)} out of the step if it does not change, or say it as one"
            " tensor expression; what must stay in Python belongs into the dataset, where loader"
            " workers do it ahead of time.",
            "manual",
        ),
        gain=Gain(
            0.0 if budget.has_device else max(0.0, least - added) * SAVING_LOW_FRAC,
            most,
            f"high end: the lines' time outside torch calls, which {stacks.samples:,} samples put"
            f" between {duration(least)} and {duration(most)}; low end: half of it"
            + (", or nothing while the device works." if budget.has_device else "."),
            WITH_DEVICE if budget.has_device else tuple(x for x in PHASES if x in phases),
        ),
        at=top.at,
    )


def _own(line: StackLine) -> bool:
    """Samples of this line end in it: nothing written in Python was called from there."""
    parts = [part for part in line.at.file.split("/") if part]
    return not line.phase and line.leaf == f"{line.at.function} ({'/'.join(parts[-2:])})"


def _phases(line: StackLine, ops: Ops) -> set[str]:
    """Where the torch calls of the line's function were made; empty if it made none."""
    return {x.phase for x in ops.lines if same_function(x.at, line.at)} & set(PHASES)


def _calling(line: StackLine, ops: Ops) -> float:
    """Time of the line's torch calls, ns per step."""
    here = [x for x in ops.lines if (x.at.file, x.at.line) == (line.at.file, line.at.line)]
    return sum(x.elapsed_ns for x in here)


def _outside(line: StackLine, budget: Budget, stacks: Stacks, ops: Ops) -> float:
    calling = _calling(line, ops) * _longer(line, budget, stacks, ops)
    return max(0.0, line.own_frac * budget.step_ns - calling)


def _longer(line: StackLine, budget: Budget, stacks: Stacks, ops: Ops) -> float:
    """How many times as long torch calls took when the samples were taken as when they were counted
    (another program may have had the cores): the median of the other lines that make some, at
    least 1."""
    others = [x for x in stacks.training if x is not line and x.self_frac >= SPEAKING_FRAC]
    counted = [(x.self_frac * budget.step_ns, ns) for x in others if (ns := _calling(x, ops))]
    return max(1.0, median(sampled / ns for sampled, ns in counted)) if counted else 1.0


def _added(line: StackLine, stacks: Stacks, budget: Budget) -> float:
    """What of the line's sampled time the sampler may have added, ns per clean step. A sampled step
    is 1 + slowed times a clean one, and all of that may lie in this line:
    share − ((1 + slowed) × share − slowed)."""
    return max(0.0, stacks.slowed_frac * (1.0 - line.own_frac)) * budget.step_ns


def fires() -> Evidence:
    return _forward(called_ms=0.2)


def clear() -> Evidence:
    """As many samples, but they fell into the torch calls that the line makes."""
    return _forward(called_ms=5.8)


def _forward(called_ms: float) -> Evidence:
    calls = op_line(25, "forward", 4, at=at(25, "forward"), elapsed_ns=called_ms * MS)
    line = stack(25, 0.3, "Net.forward (me/train.py)", function="Net.forward")
    step = budget(forward=10, backward=8, optimizer=2)
    return Evidence().add(step, stacks((line,)), ops(calls))
