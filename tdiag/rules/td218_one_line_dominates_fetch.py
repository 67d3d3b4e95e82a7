"""One line takes most of the fetch

## What it measures
Samples of the workers while they fetch (without workers: of the data wait), by the user's line; and
the time of a fetch on a core. Reported if one line has more than half of the samples, with their
sampling error, and cores are left. On full cores TD202 reports it.

## Why it is slow
Every sample of every epoch pays for this line, in each worker. More workers spread the work over
more cores and still do it.

## What to do
Make that line cheaper first: do it once and keep the result if it does not change, on smaller
inputs, or on whole batches. Then, if the loop still waits, raise `num_workers`.

## How the gain is computed
The line's share of the samples as time of the fetch. With workers the step shrinks in proportion to
the fetch. High end: without the line, and without its function, if the dataset calls one for this
part of the work. Low end: the line at half its cost.

## When this advice is wrong
Work that must be done for each sample in each epoch and already uses the fastest library can only
be spread: then more workers are the answer.
"""

from __future__ import annotations

from tdiag.evidence.feeding import Loaders
from tdiag.evidence.machine import System, Threads
from tdiag.evidence.sampled import Stacks
from tdiag.evidence.steps import Budget, Phases
from tdiag.evidence.store import Evidence
from tdiag.rules.base import Found, where
from tdiag.rules.examples import budget, loaders, phases, stack, stacks, system
from tdiag.rules.feed import feed_of, share_of_rank
from tdiag.rules.fetch_lines import expensive_fetch, main_line, whole_function

CODE = "TD218"
NAME = "one-line-dominates-fetch"
CLASS = "cpu"
UNTRIED = "what can replace the line is unknown; `ceiling.data` bounds the gain"
AFTER = {
    "TD230": "the line may run once for each item",
    "TD229": "what is kept need not be cheap",
    "TD102": "reading only what is used may make the line cheap",
    "TD207": "tensors from arrays instead of lists may make the line cheap",
    "TD209": "a cache does the line once",
    "TD210": "a tensor instead of the table makes the line cheap",
    "TD220": "smaller pictures may make the line cheap",
}


def check(
    budget: Budget,
    loaders: Loaders,
    system: System,
    stacks: Stacks,
    phases: Phases | None,
    threads: Threads | None,
) -> Found | None:
    fed = feed_of(budget, loaders, phases, system := share_of_rank(system, threads))
    line = main_line(fed, stacks)
    if fed is None or line is None or fed.out_of_cores(system):
        return None
    around = whole_function(line, fed, stacks)
    return expensive_fetch(fed, [line], stacks, where(line.at).strip(), "line", around)


def fires() -> Evidence:
    return _fetching(0.61)


def clear() -> Evidence:
    """No line has most of the samples."""
    return _fetching(0.45)


def _fetching(share: float) -> Evidence:
    lines = (
        stack(29, share, "rotate (PIL/Image.py)", function="turned"),
        stack(41, 0.3, "resize (PIL/Image.py)", function="resized"),
    )
    step = budget(data_wait_cpu=60, forward=8, backward=10, optimizer=2)
    waiting = phases(data_wait=60, forward=8)
    return Evidence().add(step, loaders(num_workers=1), system(), waiting, stacks(workers=lines))
