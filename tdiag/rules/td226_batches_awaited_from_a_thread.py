"""Training waits for a thread that waits as well

## What it measures
Time before the forward in which the training thread waits for another Python thread of its process
(a `queue.Queue`, a future, an event), while neither a thread nor another process of the script
works: their CPU time explains less than half of the wait. Samples of these threads show where they
are instead.

## Why it is slow
A thread that makes batches ahead hides its work behind the training. If it sleeps between two looks
at a full queue, or waits for a slow source (a network, a lock), the batches it made before run out,
and the training waits with it.

## What to do
Let the queue do the waiting: `put` blocks while it is full and returns as soon as there is room. A
`time.sleep` beside it only adds to that. If the thread waits for a slow source, let several threads
ask it at once, or make the queue longer.

## How the gain is computed
High end: the training waits no longer, except for the threads' own CPU time beyond the rest of the
step. Low end: half of that if the line sleeps; otherwise nothing, because the source may not be any
faster.

## When this advice is wrong
If the source sets the pace (a stream of live data), the training cannot be faster.
"""

from __future__ import annotations

import linecache
import re

from msgspec.structs import replace

from tdiag.evidence.feeding import Loaders
from tdiag.evidence.machine import Environment, System, Threads
from tdiag.evidence.sampled import CallTrees, StackLine, Stacks
from tdiag.evidence.steps import Budget, Phases
from tdiag.evidence.store import Evidence
from tdiag.evidence.torch_ops import Ops
from tdiag.model.diagnosis import Fix
from tdiag.model.threshold import MAJORITY_FRAC, NOTICEABLE_FRAC
from tdiag.rules.base import Found, Gain, frac, ns, where
from tdiag.rules.examples import budget, environment, op_line, ops, phases, stack, stacks
from tdiag.rules.fetch_lines import by_hand_ns
from tdiag.rules.loop_lines import BEFORE, beside_the_step
from tdiag.rules.thresholds import LOW_END_FRAC, MIN_SAMPLES
from tdiag.rules.waits import for_thread, processes_work
from tdiag.units import per_step, percent

CODE = "TD226"
NAME = "batches-awaited-from-a-thread"
CLASS = "input"
UNTRIED = "what the thread waits for is the script's own"

_SLEEPS = re.compile(r"\bsleep\(")


def check(
    budget: Budget,
    phases: Phases,
    stacks: Stacks,
    environment: Environment,
    loaders: Loaders | None,
    system: System | None,
    threads: Threads | None,
    ops: Ops | None,
    trees: CallTrees | None,
) -> Found | None:
    waiting = by_hand_ns(budget, phases, environment, loaders)
    if waiting < NOTICEABLE_FRAC * budget.step_ns or budget.has_device or not phases.prepare_waits:
        return None
    before = beside_the_step(BEFORE, stacks, ops, trees)
    asking = [line for line in before if for_thread(line)]
    share = sum(line.self_frac for line in asking)
    if phases.beside_ns is None or phases.made_beside:  # unknown, or they work: TD214, TD219
        return None
    if processes_work(share, budget, phases, system, threads, loaders):  # TD228
        return None
    if stacks.samples < MIN_SAMPLES or not asking:
        return None
    if share <= MAJORITY_FRAC * sum(line.self_frac for line in before):
        return None
    making = phases.beside_ns
    most = max(0.0, min(waiting, budget.step_ns - making))
    held_up = _held_up(stacks)
    sleeps = held_up is not None and _SLEEPS.search(linecache.getline(*held_up.at.spot))
    at = held_up.at if held_up else asking[0].at
    told = (
        f" That thread does not work, either: {percent(held_up.self_frac)} of the samples of the"
        f" script's other threads are{where(at)}."
        if held_up
        else " That thread does not work, either."
    )
    return Found(
        summary=(
            f"Training waits for another thread of the script{where(asking[0].at)}:"
            f" {per_step(waiting, budget.step_ns)}.{told}"
        ),
        evidence=(
            ns("wait before the forward", waiting, "budget"),
            ns("CPU time of other threads", making, "baseline"),
            frac(f"samples that wait for a thread{where(asking[0].at)}", share, "sample"),
            *(
                (frac(f"samples of other threads{where(at)}", held_up.self_frac, "sample"),)
                if held_up
                else ()
            ),
        ),
        fix=Fix(
            f"Leave out the sleep{where(at)}: put() waits by itself until the queue has room."
            if sleeps
            else f"Look at what the thread waits for{where(at)}: ask a slow source from several"
            " threads at once, and let the queue hold more batches.",
            "manual",
            action="Let the thread that makes batches wait less",
            code="batches.put(batch)  # waits while the queue is full" if sleeps else "",
        ),
        gain=Gain(
            most * LOW_END_FRAC if sleeps else 0.0,
            most,
            "high end: the training no longer waits; low end:"
            f" {'half of that' if sleeps else 'nothing, if the source is no faster'}.",
            ("prepare",),
        ),
        at=at,
    )


def _held_up(stacks: Stacks) -> StackLine | None:
    """The line at which most samples of the script's other threads are, unless they wait there for
    a thread themselves: then the training is what they wait for."""
    top = next(iter(stacks.others), None)
    if top is None or top.self_frac <= MAJORITY_FRAC or for_thread(top):
        return None
    return top


def fires() -> Evidence:
    """A thread that looks four times a second whether its queue has room."""
    return _fed(cpu_ms=0.2)


def clear() -> Evidence:
    """The loop itself makes the batches: it works."""
    return _fed(cpu_ms=28)


def _fed(cpu_ms: float) -> Evidence:
    clean = phases(prepare=29, forward=14, backward=20)
    clean = replace(clean, cpu_ns={**clean.cpu_ns, "prepare": cpu_ms * 1e6}, beside_ns=2e6)
    asks = stack(54, 0.4, "Condition.wait (python3.11/threading.py)")
    seen = stacks((asks, stack(60, 0.3, "", "forward"), stack(61, 0.3, "", "backward")))
    seen = replace(seen, others=(stack(49, 0.9, "", "", "_fill"),))
    counted = ops(op_line(60, "forward", 10), op_line(62, "optimizer", 20))
    return Evidence().add(
        budget(prepare=29, forward=14, backward=20), clean, seen, environment(), counted
    )
