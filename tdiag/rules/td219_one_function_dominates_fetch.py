"""One function takes most of the fetch

## What it measures
Samples of the workers while they fetch (without workers: of the data wait), by the user's line; and
the time of a fetch on a core. Reported if the lines of one function together have more than half of
the samples, with their sampling error, none of them alone has (TD218), and cores are left. On full
cores TD202 says so.

## Why it is slow
Every sample of every epoch pays for this function, in each worker.

## What to do
If cores are free, let workers run it beside the training. Then make it cheaper, beginning with the
line that is named, its most expensive one: do it once and keep the result if it does not change, on
smaller inputs, or on whole batches.

## How the gain is computed
The function's share of the samples as time of the fetch. With workers the step shrinks in
proportion to the fetch. High end: without the function. Low end: the function at half its cost.

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
from tdiag.rules.base import Found, where
from tdiag.rules.examples import budget, loaders, phases, stack, stacks, system
from tdiag.rules.feed import feed_of, share_of_rank
from tdiag.rules.fetch_lines import expensive_fetch, main_function

CODE = "TD219"
NAME = "one-function-dominates-fetch"
CLASS = "cpu"
AFTER = {
    "TD102": "reading only what is used may make the function cheap",
    "TD201": "workers run the function beside the training",
    "TD207": "tensors from arrays instead of lists may make the function cheap",
    "TD209": "a cache runs the function once",
    "TD210": "a tensor instead of the table makes the function cheap",
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
    lines = main_function(fed, stacks)
    if fed is None or not lines or fed.out_of_cores(system):
        return None
    top = lines[0].at
    part = f"in {top.function}, most of it{where(top)}"
    return expensive_fetch(fed, lines, stacks, part, "function")


def fires() -> Evidence:
    return _fetching("__getitem__", "__getitem__")


def clear() -> Evidence:
    """No function has most of the samples."""
    return _fetching("rotated", "resized")


def _fetching(*functions: str) -> Evidence:
    lines = (
        stack(29, 0.45, "rotate (PIL/Image.py)", function=functions[0]),
        stack(31, 0.3, "resize (PIL/Image.py)", function=functions[1]),
    )
    step = budget(data_wait_cpu=60, forward=8, backward=10, optimizer=2)
    waiting = phases(data_wait=60, forward=8)
    return Evidence().add(step, loaders(num_workers=1), system(), waiting, stacks(workers=lines))
