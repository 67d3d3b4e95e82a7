"""Preprocessing saturates the available cores

## What it measures
The training thread waits for batches, the fetches spend their time on a core or queueing for one,
and no core is left: fetching and training fill the available cores, each core that training leaves
free has its worker, or fetches mostly queue on a machine whose cores are all busy.

## Why it is slow
No rearrangement of the same work over the same cores is faster: preprocessing itself is the
bottleneck, and the device or the model waits for it.

## What to do
Do less per sample: once and offline (resize, decode, tokenise), with cheaper operations in the
lines named here, or on the device (nvJPEG, DALI, torchvision.io with `device="cuda"`).

## How the gain is computed
Low end: the most expensive line at half its cost. High end: no wait is left, as after offline
preprocessing. If workers take cores from the computing (the training thread waits for a core, and
no other program has it), both ends include that: at least the thread's own wait, at most all the
time in which a worker fetches while the training computes.

## When this advice is wrong
Random augmentation cannot be done offline; its deterministic part (decode, resize) can. If other
programs use the cores, stop those first.
"""

from __future__ import annotations

from tdiag.evidence.feeding import Loaders
from tdiag.evidence.machine import System, Threads
from tdiag.evidence.roofline import Roof, Work
from tdiag.evidence.sampled import StackLine, Stacks
from tdiag.evidence.steps import Budget, Phases
from tdiag.evidence.store import Evidence
from tdiag.model.diagnosis import Fix
from tdiag.rules.base import DATA_WAIT, MODEL_PHASES, Found, Gain, count, ns, where
from tdiag.rules.examples import budget, loaders, stack, stacks, system
from tdiag.rules.feed import Feed, feed_of, share_of_rank
from tdiag.rules.fetch_lines import (
    dataset_place,
    fetch_measure,
    fetch_place,
    top_fetch_lines,
)
from tdiag.rules.own_workers import computing_lost
from tdiag.rules.snippets import samples_on_disk
from tdiag.rules.thresholds import LOW_END_FRAC
from tdiag.units import duration, percent, plural

CODE = "TD202"
NAME = "preprocessing-saturates-cores"
CLASS = "cpu"
UNTRIED = "the results must be stored first; `loader.cache` bounds the gain"
AFTER = {
    "TD230": "the workers may do each item once",
    "TD229": "the work may be cheap enough without repetitions",
    "TD217": "without pools of threads the same work needs fewer cores",
    "TD206": "a faster collate_fn needs no offline copy",
    "TD207": "tensors from arrays instead of lists need no offline copy",
    "TD210": "a tensor instead of the table needs no offline copy",
    "TD220": "pictures decoded no larger than needed need no offline copy",
}


def check(
    budget: Budget,
    loaders: Loaders,
    system: System,
    phases: Phases | None,
    stacks: Stacks | None,
    threads: Threads | None,
    roof: Roof | None,
    work: Work | None,
) -> Found | None:
    system = share_of_rank(system, threads)
    fed = feed_of(budget, loaders, phases, system)
    if fed is None or fed.blocked_mostly or not fed.out_of_cores(system):
        return None
    if fed.from_memory:
        return None  # samples are picked from memory, not preprocessed
    lines = top_fetch_lines(fed.loader, stacks)
    saved = fed.wall * lines[0].self_frac * LOW_END_FRAC if lines else 0.0
    busy = max(fed.cores_wanted(), system.cores_used or 0.0)
    slowed = computing_lost(budget, system, fed, threads, roof, work)
    crowd = ns("computing waits for a core that a worker has", slowed[0], "system")
    return Found(
        summary=(
            f"Preprocessing takes {duration(fed.wall)} per step, and no core is left for it:"
            f" {_why_none_left(fed, system, busy)}. The step waits for it"
            f" {percent(fed.wait / fed.step)} of its time"
            + (
                f", and computing waits {duration(slowed[0])} for the workers' cores."
                if slowed[0]
                else "."
            )
        ),
        evidence=(
            *fed.measures(),
            count("cores available", system.cores_allowed, "system", "cores"),
            count("cores used or needed", busy, "system", "cores"),
            *((crowd,) if slowed[0] else ()),
            *(fetch_measure(line) for line in lines),
        ),
        fix=Fix(
            _advice(fed, lines),
            "manual",
            action="Preprocess the samples once and load the results",
            code=samples_on_disk(fed.loader.dataset_class),
        ),
        gain=Gain(
            fed.gain_of_saving(saved) + slowed[0] * saved / fed.wall,
            fed.wait + slowed[1],
            "high end: no data wait is left"
            + (", and computing has the cores to itself" if slowed[0] else "")
            + "; low end: the most expensive line costs half.",
            (*DATA_WAIT, *MODEL_PHASES) if slowed[0] else DATA_WAIT,
        ),
        at=fetch_place(fed, lines),
    )


def _why_none_left(fed: Feed, system: System, busy: float) -> str:
    if fed.saturates(system):
        return f"fetching and training need {busy:.1f} of {system.cores_allowed:g} cores"
    if fed.queued_mostly:
        return f"fetches queue for one {percent(fed.queued / fed.wall)} of their time"
    workers = fed.loader.num_workers
    return f"{plural(workers, 'worker')} and training share {system.cores_allowed:g} cores"


def _advice(fed: Feed, lines: list[StackLine]) -> str:
    name = fed.loader.dataset_class
    if not lines:
        return (
            f"Do the deterministic part of {name}{where(dataset_place(fed.loader))} once, offline,"
            " and load its result."
        )
    first = lines[0]
    leaf = f" ({first.leaf})" if first.leaf else ""
    work = f"the work{where(first.at)}{leaf}"
    if first.at == fed.loader.created_at:
        work = f"the work of {name}{leaf} for the loader{where(first.at)}"
    return (
        f"Do {work} once, offline, and let {name} load its result. It takes"
        f" {percent(first.self_frac)} of the fetch time. Random augmentation stays in the epochs."
    )


def fires() -> Evidence:
    step = budget(data_wait_cpu=25, forward=2, backward=3)
    workers = (stack(15, 0.62, "load (PIL/ImageFile.py)"), stack(16, 0.25, "resize (PIL/Image.py)"))
    return Evidence().add(
        step,
        loaders(num_workers=2, load_ns=55e6, load_cpu_ns=52e6, runqueue_ns=6e6),
        system(cores_allowed=2.0, cores_machine=2, cores_used=1.96),
        stacks(workers=workers),
    )


def clear() -> Evidence:
    """As much waiting, but six of eight cores idle: more workers are the answer."""
    step = budget(data_wait_cpu=25, forward=2, backward=3)
    return Evidence().add(step, loaders(num_workers=2), system(cores_used=2.2))
