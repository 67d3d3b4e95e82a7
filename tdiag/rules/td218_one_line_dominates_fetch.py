"""One line takes most of the fetch

## What it measures
Samples of the workers while they fetch (without workers: of the data wait), by the user's line; and
the time of a fetch on a core. Reported if one line has more than half of the samples, with their
sampling error, and cores are left. On full cores TD202 says so.

## Why it is slow
Every sample of every epoch pays for this line, in each worker. More workers spread the work over
more cores and still do it.

## What to do
Make that line cheaper first: do it once and keep the result if it does not change, on smaller
inputs, or on whole batches. Then, if the loop still waits, raise `num_workers`.

## How the gain is computed
The line's share of the samples as time of the fetch. With workers the step shrinks in proportion to
the fetch. High end: without the line. Low end: the line at half its cost.

## When this advice is wrong
Work that must be done for each sample in each epoch, by the fastest library there is, is only
spread: then workers are the answer.
"""

from __future__ import annotations

from tdiag.evidence.feeding import Loaders
from tdiag.evidence.machine import System, Threads
from tdiag.evidence.sampled import Stacks
from tdiag.evidence.steps import Budget, Phases
from tdiag.evidence.store import Evidence
from tdiag.model.diagnosis import Fix
from tdiag.model.threshold import MAJORITY_FRAC
from tdiag.rules.base import DATA_WAIT, Found, Gain, where
from tdiag.rules.examples import budget, loaders, phases, stack, stacks, system
from tdiag.rules.feed import feed_of, share_of_rank
from tdiag.rules.fetch_lines import fetch_measure, fetch_samples, top_fetch_lines
from tdiag.rules.measures import count, known_to
from tdiag.rules.thresholds import LOW_END_FRAC
from tdiag.units import duration, percent

CODE = "TD218"
NAME = "one-line-dominates-fetch"
CLASS = "cpu"
AFTER = {
    "TD102": "reading only what is used may make the line cheap",
    "TD207": "tensors from arrays instead of lists may make the line cheap",
    "TD209": "a cache does the line once",
    "TD210": "a tensor instead of the table makes the line cheap",
}


def check(
    budget: Budget,
    loaders: Loaders,
    system: System,
    stacks: Stacks,
    phases: Phases | None,
    threads: Threads | None,
) -> Found | None:
    system = share_of_rank(system, threads)
    fed = feed_of(budget, loaders, phases, system)
    if fed is None or fed.blocked_mostly or fed.from_memory or fed.out_of_cores(system):
        return None
    lines = top_fetch_lines(fed.loader, stacks)
    if not lines or lines[0].at == fed.loader.created_at:
        return None  # a library's dataset does the work
    top, seen = lines[0], fetch_samples(fed, stacks)
    least, most = known_to(top.self_frac, seen)
    if least <= MAJORITY_FRAC:
        return None
    leaf = f" ({top.leaf})" if top.leaf else ""
    return Found(
        summary=(
            f"{percent(fed.wait / fed.step)} of the step waits for data, and"
            f" {percent(top.self_frac)} of the fetch is{where(top.at)} in"
            f" {top.leaf or top.at.function} ({duration(top.self_frac * fed.wall)} per step)."
        ),
        evidence=(
            *(fetch_measure(line) for line in lines),
            count("samples of fetches", seen, "sample"),
            *fed.measures(),
        ),
        fix=Fix(
            f"Make the work{where(top.at)}{leaf} cheaper: do it once and keep the result if it does"
            " not change, on smaller inputs, or on whole batches. Then raise num_workers.",
            "manual",
            action="Make the line that takes most of the fetch cheaper",
        ),
        gain=Gain(
            fed.gain_of_saving(fed.wall * least * LOW_END_FRAC),
            fed.gain_of_saving(fed.wall * most),
            f"high end: without the line; low end: at half its cost; {seen:,} samples put its share"
            f" between {percent(least)} and {percent(most)}.",
            DATA_WAIT,
        ),
        at=top.at,
    )


def fires() -> Evidence:
    return _fetching(0.61)


def clear() -> Evidence:
    """No line has most of the samples."""
    return _fetching(0.45)


def _fetching(share: float) -> Evidence:
    lines = (
        stack(29, share, "rotate (PIL/Image.py)", function="__getitem__"),
        stack(31, 0.3, "resize (PIL/Image.py)", function="__getitem__"),
    )
    step = budget(data_wait_cpu=60, forward=8, backward=10, optimizer=2)
    waiting = phases(data_wait=60, forward=8)
    return Evidence().add(step, loaders(num_workers=1), system(), waiting, stacks(workers=lines))
