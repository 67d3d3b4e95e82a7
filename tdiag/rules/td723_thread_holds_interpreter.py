"""Another Python thread holds the interpreter or a core

## What it measures
Without a device: time per clean step in which the training thread is neither on a core nor ready
for one, and the CPU time of the program's other Python threads. Forward, loss, backward and
optimizer compute and wait for nobody. So what is blocked beyond the length of all other phases
(without their measured time on a core) is waiting for the interpreter's lock. Where no other
program and no loader's worker uses the cores, the time in which the training thread is ready and
waits for a core is theirs as well. The line is the one of these threads with most samples.

## Why it is slow
Python runs one thread at a time. Torch gives the lock back at each call. A thread that loops in
Python then takes it, and gives it back after 5 ms (`sys.getswitchinterval()`) at the earliest, so
each torch call of the training may wait that long. NumPy gives the lock back, too, and then works
on a core that torch's threads need: each parallel call waits for the last of them.

## What to do
Do the work once if its results do not change, or less often. Move it to a process
(`multiprocessing`; DataLoader workers if it makes batches) if a core is left for that. A loop that
only holds the lock can also be written as NumPy or torch calls.

## How the gain is computed
High end: all blocked time, at most the CPU time of the other threads; without communication and
checkpoints, and of a wait for loader workers the share that is blocked while computing. For the
cores twice that CPU time, because a thread can hold up the training thread and then one of torch's,
for which it waits; but nothing of the work at the machine's best rates. Low end: half of what must
be waiting.

## When this advice is wrong
If the training needs the thread's results, and no core is free for a process that makes them.
"""

from __future__ import annotations

import linecache
import re

from msgspec.structs import replace

from tdiag.evidence.feeding import Loaders
from tdiag.evidence.machine import System, Threads
from tdiag.evidence.roofline import Roof, Work
from tdiag.evidence.sampled import StackLine, Stacks
from tdiag.evidence.steps import Budget, Phases
from tdiag.evidence.store import Evidence
from tdiag.model.diagnosis import Fix
from tdiag.model.place import Place
from tdiag.model.threshold import NOTICEABLE_FRAC, Threshold
from tdiag.rules.base import DATA_WAIT, MODEL_PHASES, Abstain, Found, Gain, frac, ns, where
from tdiag.rules.examples import MS, budget, phases, stack, stacks
from tdiag.rules.own_workers import beyond_best, taken_by_threads
from tdiag.rules.thresholds import LOW_END_FRAC
from tdiag.rules.waits import fills_a_queue
from tdiag.units import duration, per_step

CODE = "TD723"
NAME = "thread-holds-interpreter"
CLASS = "overhead"
UNTRIED = "the work must move to a process; `--freeze` of the thread's function bounds the gain"

# Phases in which the training thread may wait for something else than the interpreter.
WAITING = ("comm", "checkpoint")
# Lines in which a thread waits itself. Built-in functions have no frame, so the text is matched.
_WAITS = re.compile(r"\b(sleep|wait|acquire|select|poll|recv|accept)\(")
HELD_UP_TIMES = Threshold(
    2,
    "times the threads' time on a core",
    "Heuristic: a thread holds up one of torch's threads on a core, and the others wait for that"
    " one; when it moves, it holds up the next. One of 21 ms a step held a step of 48 ms up by 28.",
)


def check(
    budget: Budget,
    phases: Phases,
    stacks: Stacks | None,
    loaders: Loaders | None,
    system: System | None,
    threads: Threads | None,
    roof: Roof | None,
    work: Work | None,
) -> Found | None:
    if budget.has_device:
        return None  # there the thread also waits for the device
    if phases.blocked_ns is None or phases.beside_ns is None:
        raise Abstain("the training thread's time on a core was not measured")
    wall, train = phases.wall_ns, loaders.train() if loaders else None
    fetches = train if train and not train.num_workers else None  # in the training process
    idle = {x: ns - phases.cpu_ns.get(x, 0.0) for x, ns in wall.items() if x not in MODEL_PHASES}
    if fetches and "data_wait" in idle and (blocked := fetches.blocked_frac()) is not None:
        idle["data_wait"] *= blocked
    surely = phases.blocked_ns - sum(idle.values())
    computing = sum(wall.get(x, 0.0) for x in MODEL_PHASES)
    waiting = sum(wall.get(x, 0.0) for x in WAITING)
    if fetches is None and computing:
        # While it waits for workers, it waits for the interpreter as often as while it computes.
        waiting += wall.get("data_wait", 0.0) * (1 - min(1.0, max(0.0, surely) / computing))
    most = min(phases.blocked_ns - waiting, phases.beside_ns)
    surely = max(0.0, min(surely, most))
    queued = taken_by_threads(budget, phases, system, train, threads)
    if queued < NOTICEABLE_FRAC * budget.step_ns:
        queued = 0.0
    if surely + queued < NOTICEABLE_FRAC * budget.step_ns:
        return None
    if queued:
        held_up = min(HELD_UP_TIMES * phases.beside_ns, beyond_best(computing, roof, work))
        most = max(surely + queued, most, held_up)
    top = _working_line(stacks)
    at = top.at if top else None
    what, why = "the interpreter", "Python runs one thread at a time."
    if queued:
        what, why = "a core", "They use the cores that torch's threads need."
    if queued and surely >= NOTICEABLE_FRAC * budget.step_ns:
        what = "the interpreter or a core"
    return Found(
        summary=(
            f"Other Python threads work{where(at)} while the training thread waits for {what}:"
            f" {per_step(surely + queued, budget.step_ns)} at least. {why}"
        ),
        evidence=(
            ns(
                "training thread neither on a core nor ready for one", phases.blocked_ns, "baseline"
            ),
            ns("of that, surely waiting for the interpreter", surely, "baseline"),
            *((ns("ready, and another thread has the core", queued, "system"),) if queued else ()),
            ns("CPU time of other Python threads", phases.beside_ns, "baseline"),
            *((frac(f"their samples{where(at)}", top.self_frac, "sample"),) if top else ()),
        ),
        fix=_fix(at, bool(queued)),
        gain=Gain(
            (surely + queued) * LOW_END_FRAC,
            most,
            f"high end: the training thread waits for no thread ({duration(most)}); low end: half"
            f" of the {duration(surely + queued)} that are surely spent so.",
            (*MODEL_PHASES, "prepare", "other", "unattributed", "evaluation", *DATA_WAIT),
        ),
        at=at,
        cls="cpu" if queued and fills_a_queue(stacks) else "",
    )


def _fix(at: Place | None, cores: bool) -> Fix:
    if cores:
        return Fix(
            f"Do the work{where(at)} once and keep its results, if they do not change, or do it"
            " less often. A process helps only if a core is left for it.",
            "manual",
            action="Do less in the thread beside the training",
        )
    return Fix(
        f"Move the work{where(at)} to a process (multiprocessing, or DataLoader workers if it"
        " makes batches), do it less often, or write its loop as NumPy or torch calls, which"
        " release the interpreter.",
        "manual",
        action="Move the thread's work out of the interpreter",
    )


def _working_line(stacks: Stacks | None) -> StackLine | None:
    lines = stacks.beside if stacks else ()
    return next((x for x in lines if not _WAITS.search(linecache.getline(*x.at.spot))), None)


def fires() -> Evidence:
    """Of a step of 100 ms the training thread runs 10; a thread counts in Python."""
    return _beside(blocked=88, threads=97)


def clear() -> Evidence:
    """The thread compresses files: zlib releases the interpreter, and nobody waits."""
    return _beside(blocked=2, threads=97)


def _beside(blocked: float, threads: float) -> Evidence:
    parts = {"data_wait": 5.0, "forward": 30.0, "backward": 45.0, "optimizer": 20.0}
    clean = replace(phases(**parts), cpu_ns={}, blocked_ns=blocked * MS, beside_ns=threads * MS)
    sampled = replace(stacks(), beside=(stack(12, 0.9, function="summarise"),))
    step = budget(data_wait_cpu=5, forward=30, backward=45, optimizer=20)
    return Evidence().add(step, clean, sampled)
