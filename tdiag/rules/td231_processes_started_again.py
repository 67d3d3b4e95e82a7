"""Processes are started again and again

## What it measures
Processes that the training thread starts itself (`multiprocessing.Process`, a pool), other than the
workers of a DataLoader, and that the same line starts in several of the steps that are timed. The
cost of a start is how much longer the steps with a start are than the median of the others.

## Why it is slow
A new process copies or imports what it needs first: with `spawn`, Python and torch, which takes
seconds of a core. The training waits for its first result, or shares the cores with it.

## What to do
Start the processes once, before the loop, and send them their next task through a queue.

## How the gain is computed
The time by which steps with a start are longer × the share of such steps. Low end: half of it,
because the first result of each round has to be made in any case. High end: all of it, and the
waits for other processes in the other steps: a process that has begun late is behind for a while.

## When this advice is wrong
If the processes must begin anew, because they leak memory or copy what has changed.
"""

from __future__ import annotations

import statistics
from bisect import bisect_left
from collections import defaultdict

from tdiag.evidence.sampled import CallTrees, Stacks
from tdiag.evidence.steps import Budget, StepHistory
from tdiag.evidence.store import Evidence
from tdiag.evidence.torch_ops import Ops
from tdiag.evidence.training import ProcessStarts
from tdiag.model.diagnosis import Fix
from tdiag.model.place import Place
from tdiag.model.threshold import Threshold
from tdiag.rules.base import DATA_WAIT, Found, Gain, count, ns, where
from tdiag.rules.examples import MS, at, budget
from tdiag.rules.loop_lines import BEFORE, beside_the_step
from tdiag.rules.thresholds import LOW_END_FRAC
from tdiag.rules.waits import for_process
from tdiag.units import duration, percent, plural

CODE = "TD231"
NAME = "processes-started-again"
CLASS = "loader"
UNTRIED = "what the processes need to go on is known to the script alone"

MIN_STEPS = Threshold(
    2,
    "steps with a start",
    "Heuristic: one start may be the only one; two of the same line in timed steps repeat.",
)


def check(
    budget: Budget,
    starts: ProcessStarts,
    history: StepHistory,
    stacks: Stacks | None,
    trees: CallTrees | None,
    ops: Ops | None,
) -> Found | None:
    place, begun = _most(starts, history)
    clean = [i for i, judged in enumerate(history.clean) if judged]
    slow = [history.durations_ns[i] for i in clean if i in begun]
    others = [history.durations_ns[i] for i in clean if i not in begun]
    if place is None or len(slow) < MIN_STEPS or not others:
        return None
    each = statistics.fmean(slow) - statistics.median(others)
    costs = each * len(slow) / len(clean)
    if costs <= 0:
        return None
    return Found(
        summary=(
            f"A process is started anew{where(place)} in {len(slow)} of"
            f" {plural(len(clean), 'step')}: these take {duration(each)} longer than the others,"
            f" {percent(costs / budget.step_ns)} of the training time."
        ),
        evidence=(
            count("steps with a start", len(slow), "baseline"),
            ns("such a step takes longer by", each, "baseline"),
            ns("of a step, on average", costs, "baseline"),
        ),
        fix=Fix(
            f"Start the processes{where(place)} once, before the loop, and send them their next"
            " task through a queue.",
            "review",
            action="Start the processes once",
            code="tasks, results = multiprocessing.Queue(), multiprocessing.Queue()\n"
            "process = multiprocessing.Process(target=work, args=(tasks, results), daemon=True)\n"
            "process.start()  # once; then tasks.put(task) for each round",
        ),
        gain=Gain(
            costs * LOW_END_FRAC,
            max(costs, _awaited(stacks, ops, trees) * budget.step_ns),
            f"low end: {percent(LOW_END_FRAC)} of that; high end: all of it, and no step waits for"
            " another process.",
            ("prepare", "other", *DATA_WAIT),
        ),
        at=place,
    )


def _most(starts: ProcessStarts, history: StepHistory) -> tuple[Place | None, set[int]]:
    """The line that starts processes in most steps, and these steps."""
    steps: dict[Place, set[int]] = defaultdict(set)
    for place, began in starts.starts:
        steps[place].add(bisect_left(history.end_ns, began))
    return max(steps.items(), key=lambda row: len(row[1]), default=(None, set()))


def _awaited(stacks: Stacks | None, ops: Ops | None, trees: CallTrees | None) -> float:
    """Share of the samples in which the training thread waits for another process, 0..1."""
    lines = beside_the_step(BEFORE, stacks, ops, trees)
    return sum(line.self_frac for line in lines if for_process(line))


def fires() -> Evidence:
    """A feeder for each round of 10 steps of 100 ms; its first batch takes 600 ms longer."""
    return _rounds(600)


def clear() -> Evidence:
    """The rounds begin no later than other steps."""
    return _rounds(0)


def _rounds(longer_ms: int) -> Evidence:
    durations = [(100 + longer_ms * (i % 10 == 0)) * MS for i in range(100)]
    ends = [sum(durations[: i + 1]) for i in range(100)]
    history = StepHistory(
        end_ns=tuple(ends),
        durations_ns=tuple(durations),
        windows=("baseline",) * 100,
        clean=(True,) * 100,
    )
    started = tuple((at(54), ends[i] - 50 * MS) for i in range(0, 100, 10))
    step = budget(prepare=longer_ms / 10 + 5, forward=40, backward=50, optimizer=5)
    return Evidence().add(step, ProcessStarts(starts=started), history)
