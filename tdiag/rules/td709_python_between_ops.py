"""Python code between torch calls takes long

## What it measures
Samples that end in a single user line in forward, loss, optimizer or before them, minus the time of
that line's torch calls: the rest is Python, or what it calls outside torch. In forward, loss and
optimizer, and within hooks, in backward too, samples that end in another library (`random`, NumPy,
`inspect`) count as well. Samples, torch calls
and clean steps come from different windows. So a line is reported only if its torch calls, scaled
by how much longer calls took while sampling, take less than a quarter of its time, and if time is
left even if everything the sampler added to a step fell into this line. If the line takes at least
5 % of the step, a tighter limit applies: time that the line's phases also take in clean steps,
outside torch calls, was not added by the sampler.

## Why it is slow
The interpreter takes tens of nanoseconds for every name and number, one after the other, while the
device (or torch's threads) waits.

## What to do
Move work that does not change out of the step, replace loops over numbers by one tensor expression,
and keep files, locks and sleeps out of the step.

## How the gain is computed
High end: the lines' time outside torch calls, within the sampling error, plus that of other lines
of their functions, which are rewritten too. Low end: half of the lines' own time, without the time
added by the sampler, because the replacement also takes time; with a device nothing, because it may
work at the same time.

## When this advice is wrong
If the samples fall into your own C extension (a tokenizer, a simulator), the work is real: move it
to a loader worker. Compiling does not speed up code outside torch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf
from statistics import median

from msgspec.structs import replace

from tdiag.evidence.sampled import CallTrees, StackLine, Stacks
from tdiag.evidence.steps import Budget, Phases
from tdiag.evidence.store import Evidence
from tdiag.evidence.torch_ops import Ops
from tdiag.model.diagnosis import Fix
from tdiag.model.threshold import MAJORITY_FRAC, NOTICEABLE_FRAC, Threshold
from tdiag.rules.base import Abstain, Found, Gain, count, known_to, ns, same_function, where
from tdiag.rules.callers import caller_of
from tdiag.rules.examples import MS, at, budget, op_line, ops, stack, stacks
from tdiag.rules.hooks import within_passes
from tdiag.rules.log_lines import logs
from tdiag.rules.loop_lines import AFTER as AFTER_THE_STEP
from tdiag.rules.loop_lines import (
    BEFORE,
    beside_the_step,
    by_elimination,
    check_samples,
    within_the_step,
)
from tdiag.rules.thresholds import LOW_END_FRAC
from tdiag.rules.waits import for_process
from tdiag.units import duration, per_step

CODE = "TD709"
NAME = "python-between-ops"
CLASS = "overhead"
UNTRIED = "the work has to be moved or rewritten; `--freeze` of its function bounds the gain"

OUTSIDE_FRAC = Threshold(
    0.75,
    "of the line's time",
    "Heuristic: samples and calls come from different windows, in one of which the machine may be"
    " twice as busy, so torch calls may take at most a quarter.",
)
COMPARABLE_TIMES = Threshold(
    2.0,
    "times as long",
    "Heuristic: where other lines' calls took more than twice as long when sampled, lines with"
    " torch calls are not judged.",
)
SPEAKING_FRAC = Threshold(
    0.01,
    "of the samples",
    "By arithmetic: 1 % of the least 100 samples is one sample; fewer give no ratio.",
)
# Phases in which the training thread runs user lines, as calls are counted by phase.
PHASES = ("prepare", "forward", "loss", "optimizer")
HELD = (*PHASES, "backward")  # a hook may run in it
COMPUTING = ("forward", "loss", "optimizer")
# The budget components of the same time in a run with a device.
WITH_DEVICE = ("launch", "python_loss", "other", "optimizer")


def check(
    budget: Budget, stacks: Stacks, ops: Ops, trees: CallTrees | None, phases: Phases | None
) -> Found | None:
    check_samples(stacks)
    others = beside_the_step(AFTER_THE_STEP, stacks, ops, trees)  # TD713 reports these
    before = beside_the_step(BEFORE, stacks, ops, trees)
    if phases is not None and phases.prepare_waits:  # a line that waits runs no Python
        others += before
    mine = [x for x in stacks.training if x not in others and not for_process(x)]
    called = {x.at.spot: _callers_phase(x, ops, trees) for x in mine}
    hooked = {x.at.spot: within_passes(x.at.spot, trees) for x in mine}
    computing = {s for s in called if called[s] in COMPUTING or hooked[s]}
    candidates = (_with_libraries(x, budget, ops, x.at.spot in computing) for x in mine)
    mine = [x for x in candidates if _own(x) and not logs(x)]
    within = within_the_step(stacks, ops, trees)
    phases_of = {
        x: ("backward" in hooked[x.at.spot] and hooked[x.at.spot] | _phases(x, ops))
        or _phases(x, ops)
        or {within.get(x.at.spot, "")} & set(PHASES)
        or {by_elimination(x, budget, ops), called[x.at.spot]} & set(PHASES)
        or hooked[x.at.spot]
        for x in mine
    }
    unseen = [x for x in mine if not _calling(x, ops)] if _missed_evaluation(budget, ops) else []
    mine = [x for x in mine if x not in unseen]
    outside = {x: _outside(x, budget, stacks, ops) for x in mine}
    lines = [x for x in outside if outside[x] > OUTSIDE_FRAC * x.own_frac * budget.step_ns]
    lines = [x for x in lines if phases_of[x]]
    added = {x: _added(x, stacks, budget) for x in lines}
    for x in lines:
        if outside[x] >= NOTICEABLE_FRAC * budget.step_ns:
            added[x] = min(added[x], _not_clean(x, outside, phases_of, ops, phases))
    lines = [x for x in lines if outside[x] > added[x]]
    apart = [
        x for x in lines if _calling(x, ops) and _longer(x, budget, stacks, ops) > COMPARABLE_TIMES
    ]
    lines = [x for x in lines if x not in apart]
    # A line above the forward spends no time in the phases of the loop's other lines.
    above = {x.at.spot for x in before}
    there = {p for x in lines for p in (("prepare",) if x.at.spot in above else phases_of[x])}
    if apart and not lines:
        raise Abstain("torch calls took more than twice as long while sampled as while counted")
    if not lines and unseen:
        raise Abstain(
            "the counted steps had no evaluation, so a line of an evaluation cannot be recognised"
        )
    if not lines:
        return None
    total = sum(outside[x] for x in lines)
    top = max(lines, key=lambda x: outside[x])
    sampled = sum(x.own_frac for x in lines)
    uncertain = max(added[x] for x in lines)
    beside = sum(ns for x, ns in outside.items() if x not in lines and _with(x, lines))
    least, most = (
        max(0.0, total + (known - sampled) * budget.step_ns)
        for known in known_to(sampled, stacks.samples)
    )
    return Found(
        summary=(
            f"Python code between torch calls takes {per_step(total, budget.step_ns)}, most of"
            f" it{where(top.at)} in {top.at.function} ({duration(outside[top])})."
        ),
        evidence=(
            *(ns(f"outside torch calls{where(x.at)}", outside[x], "sample") for x in lines[:3]),
            ns(f"torch calls{where(top.at)}", _calling(top, ops), "ops"),
            count("samples of the training thread", stacks.samples, "sample"),
        ),
        fix=Fix(
            f"Move the work{where(top.at)} out of the step if it does not change, or write it as"
            " one tensor expression. Move Python work that must stay to the dataset, where loader"
            " workers do it ahead of time.",
            "manual",
            action="Move Python work out of the step or vectorise it",
        ),
        gain=Gain(
            0.0 if budget.has_device else max(0.0, least - uncertain) * LOW_END_FRAC,
            most + beside,
            f"high end: the lines' time outside torch calls, which {stacks.samples:,} samples put"
            f" between {duration(least)} and {duration(most)}, plus {duration(beside)} in other"
            " lines of their functions; low end: half of the lines' own time"
            + (", or nothing while the device works." if budget.has_device else "."),
            WITH_DEVICE if budget.has_device else tuple(x for x in HELD if x in there),
        ),
        at=top.at,
    )


def _with(line: StackLine, others: Sequence[StackLine]) -> bool:
    """Whether the line is in the same function as one of the others, which a rewrite changes."""
    return any(same_function(line.at, other.at) for other in others)


def _callers_phase(line: StackLine, ops: Ops, trees: CallTrees | None) -> str:
    """Of a line whose function makes no torch call: the phase of the next torch call of the
    function that calls it; "" if unknown."""
    if any(same_function(x.at, line.at) for x in ops.lines):
        return ""
    at = caller_of(line.at, trees)
    there = [x for x in ops.lines if at and same_function(x.at, at) and x.at.line >= at.line]
    following = min(there, key=lambda x: x.at.line, default=None)
    return following.phase if following else ""


def _with_libraries(line: StackLine, budget: Budget, ops: Ops, computes: bool) -> StackLine:
    """The line with its samples in libraries other than torch, and in walks over its modules, as
    its own, if they are most of its samples and its function mostly computes, or ``computes``, as
    what calls it: what makes a batch is other rules' business."""
    if line.elsewhere_frac <= MAJORITY_FRAC * line.self_frac:
        return line
    if computes:
        return replace(line, own_frac=line.own_frac + line.elsewhere_frac, leaf=_itself(line))
    mine = [x for x in ops.lines if same_function(x.at, line.at) and x.phase in PHASES]
    making = sum(x.elapsed_ns for x in mine if x.phase == "prepare")
    makes = making >= MAJORITY_FRAC * sum(x.elapsed_ns for x in mine)
    # The few counted steps may be unusual; the clean steps show how long making batches takes.
    if not mine or (makes and line.elsewhere_frac <= budget.share("prepare")):
        return line
    return replace(line, own_frac=line.own_frac + line.elsewhere_frac, leaf=_itself(line))


def _own(line: StackLine) -> bool:
    """Whether samples end in this line itself: it calls nothing written in Python."""
    return not line.phase and line.leaf == _itself(line)


def _itself(line: StackLine) -> str:
    parts = [part for part in line.at.file.split("/") if part]
    return f"{line.at.function} ({'/'.join(parts[-2:])})"


def _missed_evaluation(budget: Budget, ops: Ops) -> bool:
    """Whether evaluations or rollouts take time but the few steps with counted torch calls had
    none: then a line without counted calls may belong to them."""
    evaluates = budget.share("evaluation") >= NOTICEABLE_FRAC
    return evaluates and not any(line.phase == "evaluation" for line in ops.lines)


def _phases(line: StackLine, ops: Ops) -> set[str]:
    """Phases of the torch calls of the line's function; empty if it makes none."""
    return {x.phase for x in ops.lines if same_function(x.at, line.at)} & set(PHASES)


def _calling(line: StackLine, ops: Ops) -> float:
    """Time of the line's torch calls, ns per step."""
    here = [x for x in ops.lines if x.at.spot == line.at.spot]
    return sum(x.elapsed_ns for x in here)


def _outside(line: StackLine, budget: Budget, stacks: Stacks, ops: Ops) -> float:
    calling = _calling(line, ops) * _longer(line, budget, stacks, ops)
    return max(0.0, line.own_frac * budget.step_ns - calling)


def _longer(line: StackLine, budget: Budget, stacks: Stacks, ops: Ops) -> float:
    """Torch call time when sampled ÷ when counted (another program may have used the cores): the
    median of the other lines with torch calls, at least 1."""
    apart = [x for x in stacks.training if x.at.spot != line.at.spot]
    others = [x for x in apart if x.self_frac >= SPEAKING_FRAC]
    counted = [(x.self_frac * budget.step_ns, ns) for x in others if (ns := _calling(x, ops))]
    return max(1.0, median(sampled / ns for sampled, ns in counted)) if counted else 1.0


def _added(line: StackLine, stacks: Stacks, budget: Budget) -> float:
    """The most time that the sampler may have added to this line, ns per clean step. A sampled step
    is 1 + slowed times a clean one, and all of the difference may be in this line: share − ((1 +
    slowed) × share − slowed)."""
    return max(0.0, stacks.slowed_frac * (1.0 - line.own_frac)) * budget.step_ns


def _not_clean(
    line: StackLine,
    outside: Mapping[StackLine, float],
    phases_of: Mapping[StackLine, set[str]],
    ops: Ops,
    phases: Phases | None,
) -> float:
    """The most that the sampler can have added to the line, ns per step: sampled Python time of the
    line's phases minus their clean time outside torch calls."""
    if phases is None:
        return inf
    mine = phases_of[line]
    sampled = sum(ns for x, ns in outside.items() if phases_of[x] & mine)
    clean = sum(phases.wall_ns.get(phase, 0.0) for phase in mine)
    called = sum(x.elapsed_ns for x in ops.lines if x.phase in mine)
    return max(0.0, sampled - max(0.0, clean - called))


def fires() -> Evidence:
    return _forward(called_ms=0.2)


def clear() -> Evidence:
    """As many samples, but inside the line's torch calls."""
    return _forward(called_ms=5.8)


def _forward(called_ms: float) -> Evidence:
    calls = op_line(25, "forward", 4, at=at(25, "forward"), elapsed_ns=called_ms * MS)
    line = stack(25, 0.3, "Net.forward (me/train.py)", function="Net.forward")
    step = budget(forward=10, backward=8, optimizer=2)
    return Evidence().add(step, stacks((line,)), ops(calls))
