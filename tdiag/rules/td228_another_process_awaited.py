"""Training waits for another process

## What it measures
Samples of the training thread that wait before the forward for something outside of the process: at
the end of a pipe or queue, in a socket, for a program that was started, or for a pool of processes.
For a pool (whose lines wait for a thread that reads its answers), only if other processes of the
script used the cores during at least half of the wait. How much these work is what the whole
program uses of the cores beyond its own threads, at least the wait itself; for a call that asks and
waits (`pool.map`), just that.

## Why it is slow
A process that is asked only when its answer is needed works while the training waits, and waits
while the training works: of two processes one always idles. A teacher, a server of features or a
pool that makes the batch is then as slow as if it were called in the loop.

## What to do
Ask earlier: send the request for the next batch before training on this one, and read the answer
when the next step begins. For a pool: `apply_async` or `imap` instead of `map`. If the other
process already works during most of the step, let more of them share its work.

## How the gain is computed
High end: both work at the same time, so the step takes as long as the longer of the two. Low end:
half of that if a core is free for the other process; nothing if none is, because both then share
one. If the other process works during most of the rest as well: at best the wait is gone, at worst
nothing changes; without a free core nothing is said.

## When this advice is wrong
If the request needs the result of this step, such as the newest weights, it cannot be sent earlier.
"""

from __future__ import annotations

import re

from tdiag.evidence.feeding import Loaders
from tdiag.evidence.machine import System, Threads
from tdiag.evidence.sampled import CallTrees, Stacks
from tdiag.evidence.steps import Budget, Phases
from tdiag.evidence.store import Evidence
from tdiag.evidence.torch_ops import Ops
from tdiag.model.diagnosis import Fix
from tdiag.model.threshold import MAJORITY_FRAC, NOTICEABLE_FRAC
from tdiag.rules.base import Found, Gain, count, frac, known_to, ns, where
from tdiag.rules.examples import budget, op_line, ops, stack, stacks
from tdiag.rules.examples import system as machine
from tdiag.rules.feed import cores_full, free_cores
from tdiag.rules.loop_lines import BEFORE, beside_the_step, check_samples
from tdiag.rules.syntax import statement_text
from tdiag.rules.thresholds import LOW_END_FRAC
from tdiag.rules.waits import cores_of_processes, for_process, for_thread, processes_work
from tdiag.units import per_step

CODE = "TD228"
NAME = "another-process-awaited"
CLASS = "input"
AFTER = {"TD231": "a process that has begun late is behind"}
UNTRIED = "when the other process can be asked is known to the script alone"

# Calls that send work to a pool and wait for its result.
_ASKS_AND_WAITS = re.compile(r"\.(map|starmap|apply)\(")


def check(
    budget: Budget,
    stacks: Stacks,
    system: System,
    phases: Phases | None,
    threads: Threads | None,
    loaders: Loaders | None,
    ops: Ops | None,
    trees: CallTrees | None,
) -> Found | None:
    check_samples(stacks)
    known = budget, phases, system, threads, loaders
    before = beside_the_step(BEFORE, stacks, ops, trees)
    asking = [line for line in before if for_process(line)]
    pooled = [line for line in before if for_thread(line)]
    if processes_work(sum(line.self_frac for line in pooled), *known):
        asking += pooled
    share = sum(line.self_frac for line in asking)
    least, most = known_to(share, stacks.samples)
    if least < NOTICEABLE_FRAC or budget.has_device:
        return None
    top = max(asking, key=lambda line: line.self_frac)
    working = max(share, cores_of_processes(share, *known) or 0.0)
    if _ASKS_AND_WAITS.search(statement_text(*top.at.spot)):
        working = share
    # Both at the same time take as long as the longer one.
    hidden = min(most, 1 - max(1 - share, working))
    busy = working > share + MAJORITY_FRAC * (1 - share)  # it works during the rest as well
    free = not cores_full(system)
    if busy and not free:
        return None
    low = min(least, hidden) * LOW_END_FRAC if free and not busy else 0.0
    return Found(
        cls="cpu" if top in pooled else CLASS,
        summary=(
            f"Training waits for another process{where(top.at)}:"
            f" {per_step(share * budget.step_ns, budget.step_ns)} in {top.leaf}."
            + (" Other processes work during the rest of the step as well." if busy else "")
        ),
        evidence=(
            frac(f"samples that wait{where(top.at)}", top.self_frac, "sample"),
            ns("wait before the forward", share * budget.step_ns, "sample"),
            count("cores that other processes use, at least", working, "system", "cores"),
            count("samples of the training thread", stacks.samples, "sample"),
        ),
        fix=_shared(system, where(top.at)) if busy else _asked_earlier(where(top.at)),
        gain=Gain(
            low * budget.step_ns,
            (most if busy else hidden) * budget.step_ns,
            "high end: training no longer waits; low end: nothing, if more processes add little."
            if busy
            else "high end: the other process works while the step trains; low end:"
            f" {'half of that' if free else 'nothing, if both share the cores'}.",
            ("prepare",),
        ),
        at=top.at,
    )


def _asked_earlier(here: str) -> Fix:
    return Fix(
        f"Ask for the next batch's answer before training on this one, and read it{here} when the"
        " next step begins: then both work at the same time.",
        "review",
        action="Ask the other process one step earlier",
        code="answer = pool.apply_async(make_batch, (0,))\n"
        "for step in range(steps):\n"
        "    batch, answer = answer.get(), pool.apply_async(make_batch, (step + 1,))\n"
        "    ...  # train on batch",
    )


def _shared(system: System, here: str) -> Fix:
    return Fix(
        f"Let more processes share the work that is awaited{here}, or make it cheaper:"
        f" {free_cores(system)} are free.",
        "manual",
        action="Let more processes share the work",
    )


def fires() -> Evidence:
    """A pipe to a process that labels the batch."""
    return _asked("Connection._recv (multiprocessing/connection.py)")


def clear() -> Evidence:
    """The loop labels the batch itself."""
    return _asked("label (teacher.py)")


def _asked(leaf: str) -> Evidence:
    seen = stacks((stack(54, 0.4, leaf), stack(60, 0.3, "", "forward"), stack(61, 0.3)))
    counted = ops(op_line(60, "forward", 10), op_line(62, "optimizer", 20))
    step = budget(prepare=29, forward=14, backward=20)
    return Evidence().add(step, seen, machine(cores_used=1.0), counted)
