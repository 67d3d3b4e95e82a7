"""Batches are made in the training loop, without a DataLoader

## What it measures
In a training without a DataLoader: the time from the end of a step to the first forward call, its
share on a core, and the line with most samples. If the loop waits there while other threads of the
script work: their CPU time and their line. Reported only if the program leaves cores unused. With a
device: the device's idle time during that time, from the trace, without copies and waits for the
device; it counts if it is at least a fifth of the step.

## Why it is slow
While the loop or a generator reads, decodes and stacks the next batch, nothing trains: the step is
the *sum* of making a batch and computing, while other cores idle. A thread that makes them ahead
helps little: Python threads run one at a time, so it slows the training down.

## What to do
Let a DataLoader with workers make the batches: the generator becomes the `__iter__` of an
`IterableDataset`, or the work on one sample the `__getitem__` of a `Dataset`.

## How the gain is computed
High end: workers make batches on their own cores while the step trains, so the step is the longer
of the two. Low end: nothing, if a further core adds little, or if the time between steps is not
spent on batches.

## When this advice is wrong
Batches indexed from memory in less than about a millisecond cost more to hand over than to make.
Other work may run between two steps (a schedule, a log), as the line shows. An agent is not
reported: its environment cannot run ahead.
"""

from __future__ import annotations

import math

from tdiag.evidence.feeding import Loaders
from tdiag.evidence.machine import Environment, System, Threads
from tdiag.evidence.sampled import CallTrees, Stacks
from tdiag.evidence.steps import Budget, Phases
from tdiag.evidence.store import Evidence
from tdiag.evidence.torch_ops import Calls, Ops
from tdiag.evidence.training import Flags
from tdiag.model.diagnosis import Fix
from tdiag.model.place import Place
from tdiag.model.threshold import MAJORITY_FRAC, NOTICEABLE_FRAC
from tdiag.rules.base import Found, Gain, count, frac, ns, where
from tdiag.rules.evaluation import acts
from tdiag.rules.examples import budget, environment, loaders, phases, stack, stacks, system
from tdiag.rules.feed import HANDOVER_HIGH_NS, cores_full, free_cores, share_of_rank
from tdiag.rules.fetch_lines import by_hand_ns
from tdiag.rules.loop_lines import BEFORE, beside_the_step
from tdiag.units import duration, per_step, percent, plural

CODE = "TD214"
NAME = "batches-made-in-the-loop"
CLASS = "cpu"
UNTRIED = "the loop's own code must become a dataset"
AFTER = {
    "TD229": "the work may be cheap enough without repetitions",
    "TD207": "workers hide work that need not be done",
    "TD219": "workers spread the work of one function and still do it",
    "TD711": "workers hide a loop that need not run",
}


def check(
    budget: Budget,
    phases: Phases,
    system: System,
    environment: Environment,
    loaders: Loaders | None,
    stacks: Stacks | None,
    ops: Ops | None,
    trees: CallTrees | None,
    flags: Flags | None,
    calls: Calls | None,
    threads: Threads | None,
) -> Found | None:
    system = share_of_rank(system, threads)
    making = by_hand_ns(budget, phases, environment, loaders)
    wall, cpu = phases.wall_ns.get("prepare", 0.0), phases.cpu_ns.get("prepare", 0.0)
    if not making or phases.acts or acts(flags, calls):
        return None
    if making < NOTICEABLE_FRAC * budget.step_ns or making < HANDOVER_HIGH_NS:
        return None
    beside = phases.made_beside and not budget.has_device
    # With a device, the host may also wait for it then; that part makes no batch.
    if cpu <= MAJORITY_FRAC * (making if budget.has_device else wall) and not beside:
        return None  # it mostly waits
    if system.cores_allowed < 2 or cores_full(system):
        return None  # no core is free to make batches during the step
    rest = budget.step_ns - making
    if beside:  # it makes batches all the time, not only while the loop waits
        making = max(making, phases.beside_ns or 0.0)
    workers = min(math.ceil(making / max(rest, 1.0)), math.floor(system.cores_allowed) - 1)
    above = stacks.beside if beside and stacks else beside_the_step(BEFORE, stacks, ops, trees)
    at = above[0].at if above else _line(stacks)
    return Found(
        summary=(
            f"A thread makes the batches, most of it{where(at)}: {duration(making)} of CPU time"
            f" per step. The loop waits for it {percent(wall / budget.step_ns)} of the step."
            " Python threads run one at a time."
            if beside
            else f"Making batches in the loop, most of it{where(at) or ' between steps'}, takes"
            f" {per_step(making, budget.step_ns)}{_meanwhile(budget, cpu / wall)}"
        ),
        evidence=(
            ns("between the steps", making if budget.has_device else wall, "budget"),
            frac("host's time between steps on a core", cpu / wall, "baseline"),
            *((ns("CPU time of other threads", making, "baseline"),) if beside else ()),
            ns("rest of the step", rest, "budget"),
            count("cores available", system.cores_allowed, "system", "cores"),
        ),
        fix=Fix(
            f"Make the batches{where(at)} in an IterableDataset, each worker its share, with"
            f" DataLoader(dataset, batch_size=None, num_workers={workers}). A batch takes"
            f" {duration(making)} to make and {duration(rest)} to train on, and"
            f" {free_cores(system)} are free.{_on_device(budget)}",
            "review",
            action="Make the batches in DataLoader workers",
            code=(
                "class Batches(torch.utils.data.IterableDataset):\n"
                "    def __iter__(self):\n"
                "        worker = torch.utils.data.get_worker_info()\n"
                "        for index in range(worker.id, number_of_batches, worker.num_workers):\n"
                "            yield make_batch(index)  # the body of the loop, up to the model\n\n"
                "loader = torch.utils.data.DataLoader(\n"
                f"    Batches(), batch_size=None, num_workers={workers}\n"
                ")"
            ),
        ),
        gain=Gain(
            0.0,
            max(0.0, budget.step_ns - max(rest, making / workers)),
            f"high end: {plural(workers, 'worker')} make the batches ({duration(making)}) in"
            f" parallel with {duration(rest)} of training; low end: nothing, if another core adds"
            " little.",
            ("prepare",),
        ),
        at=at,
    )


def _meanwhile(budget: Budget, on_core: float) -> str:
    if budget.has_device:
        return ". The device is idle during that time."
    return f", {percent(on_core)} of it on a core. Nothing trains during that time."


def _on_device(budget: Budget) -> str:
    if not budget.has_device:
        return ""
    return " If the data fits on the device, keep it there and index it instead."


def _line(stacks: Stacks | None) -> Place | None:
    """The user's line with most samples between steps."""
    lines = [line for line in stacks.training if line.phase == "prepare"] if stacks else []
    return max(lines, key=lambda line: line.self_frac).at if lines else None


def fires() -> Evidence:
    step = budget(prepare=40, forward=8, backward=10, optimizer=2)
    made = phases(prepare=40, forward=8, backward=10, optimizer=2)
    sampled = stacks((stack(14, 0.55, "decode (PIL/Image.py)", "prepare", "batches"),))
    return Evidence().add(step, made, system(), environment(), sampled)


def clear() -> Evidence:
    """The same time with a DataLoader: other rules handle its batches."""
    return fires().add(loaders())
