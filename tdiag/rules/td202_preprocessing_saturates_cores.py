"""Preprocessing keeps every allowed core busy

## What it measures
The training thread waits for batches, the fetches spend their time on a core or queueing for one,
and no core is left to spread them over: fetching and training together fill those this process may
use, or every core that training leaves free has its worker, or the fetches mostly queue on a
machine whose cores are all busy.

## Why it is slow
No arrangement of the same work over the same cores is faster: the preprocessing itself is the
bottleneck, and the device (or the model) waits for it.

## What to do
Do less of it per sample: once, offline (resize, decode, tokenise, convert to tensors), or with
cheaper operations in the lines named here, or on the device (nvJPEG, DALI, torchvision.io with
`device="cuda"` when decoding leads).

## How the gain is computed
Low end: the costliest line at half its cost. High end: none of the wait is left, as when the
preprocessing is done once, offline.

## When this advice is wrong
Random augmentation cannot be done offline as it stands; its deterministic part (decode, resize)
can. If other programs use the cores, stop those first.
"""

from __future__ import annotations

from tdiag.evidence.data import Loaders
from tdiag.evidence.kinds import Budget, Phases, StackLine, Stacks, System
from tdiag.evidence.store import Evidence
from tdiag.model.diagnosis import Fix, Measure
from tdiag.rules.base import DATA_WAIT, Found, Gain, where
from tdiag.rules.examples import budget, loaders, stack, stacks, system
from tdiag.rules.feed import Feed, feed_of
from tdiag.rules.fetch_lines import dataset_place, top_fetch_lines
from tdiag.rules.measures import count, frac
from tdiag.units import duration, percent, plural

CODE = "TD202"
NAME = "preprocessing-saturates-cores"
CLASS = "cpu"
AFTER = {
    "TD206": "collating need not be preprocessed offline, only written otherwise",
    "TD207": "tensors from arrays instead of lists cost next to nothing, and need no offline copy",
    "TD210": "a tensor instead of the table costs next to nothing, and needs no offline copy",
}

# The least a rewrite of one line is expected to save; ours, to keep the low end modest.
LINE_SAVING_LOW_FRAC = 0.5


def check(
    budget: Budget,
    loaders: Loaders,
    system: System,
    phases: Phases | None,
    stacks: Stacks | None,
) -> Found | None:
    fed = feed_of(budget, loaders, phases, system)
    if fed is None or fed.blocked_mostly or not fed.out_of_cores(system):
        return None
    if fed.from_memory:
        return None  # samples in memory are picked, not preprocessed
    lines = top_fetch_lines(fed, stacks)
    saved = fed.wall * lines[0].self_frac * LINE_SAVING_LOW_FRAC if lines else 0.0
    busy = max(fed.cores_wanted(), system.cores_used or 0.0)
    return Found(
        summary=(
            f"{percent(fed.wait / fed.step)} of the step waits for preprocessing, which has no"
            f" core left: {_why_none_left(fed, system, busy)}"
            f" ({duration(fed.wall)} of fetching for each step)."
        ),
        evidence=(
            *fed.measures(),
            count("cores allowed", system.cores_allowed, "system", "cores"),
            count("cores used or wanted", busy, "system", "cores"),
            *(_measure(line) for line in lines),
        ),
        fix=Fix(_advice(fed, lines), "manual"),
        gain=Gain(
            fed.gain_of_saving(saved),
            fed.wait,
            "low end: the costliest line at half its cost; high end: preprocessed once, offline.",
            DATA_WAIT,
        ),
        at=lines[0].at if lines else dataset_place(fed.loader),
    )


def _why_none_left(fed: Feed, system: System, busy: float) -> str:
    if fed.saturates(system):
        return f"fetching and training want {busy:.1f} of {system.cores_allowed:g} cores"
    if fed.queued_mostly:
        return f"fetches queue for one {percent(fed.queued / fed.wall)} of their time"
    workers = fed.loader.num_workers
    return f"{plural(workers, 'worker')} and training share {system.cores_allowed:g} cores"


def _measure(line: StackLine) -> Measure:
    leaf = f" in {line.leaf}" if line.leaf else ""
    return frac(f"fetch samples{where(line.at)}{leaf}", line.self_frac, "sample")


def _advice(fed: Feed, lines: list[StackLine]) -> str:
    name = fed.loader.dataset_class
    if not lines:
        return (
            f"Do the deterministic part of what {name} loads{where(dataset_place(fed.loader))}"
            " once, offline, and load its result."
        )
    first = lines[0]
    leaf = f" ({first.leaf})" if first.leaf else ""
    work = f"the work{where(first.at)}{leaf}"
    if first.at == fed.loader.created_at:
        work = f"what {name} does{leaf} for the loader{where(first.at)}"
    return (
        f"Do {work}, {percent(first.self_frac)} of the fetch time, once and offline, and let"
        f" {name} load its result; what is random per epoch stays, on the smaller data."
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
