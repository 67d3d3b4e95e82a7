"""Several functions share the work of the fetch

## What it measures
Samples of the workers while they fetch (without workers: of the data wait), by the user's line, and
the time of a fetch on a core. Reported if the user's functions together have more than half of the
samples, with their sampling error, no line (TD218) and no function (TD219) alone has, and cores are
left. On full cores TD202 reports it.

## Why it is slow
Every sample of every epoch passes through all these functions: a chain of transforms, for example.

## What to do
If cores are free, let workers run the chain while the training computes. Then put what makes the
data smaller first (crop, resize, select columns), so that the expensive functions get less to work
on. Do what is not random once, offline. Use one call for a whole batch where the library has it.

## How the gain is computed
The functions' shares of the samples as time of the fetch. High end: without these functions. Low
end: the largest function at half its cost.

## When this advice is wrong
Changing the order of random transforms changes the augmentation: a blur before the crop sees pixels
beyond its edge.
"""

from __future__ import annotations

from tdiag.evidence.feeding import Loaders
from tdiag.evidence.machine import System, Threads
from tdiag.evidence.sampled import Stacks
from tdiag.evidence.steps import Budget, Phases
from tdiag.evidence.store import Evidence
from tdiag.model.diagnosis import Fix
from tdiag.rules.base import DATA_WAIT, Found, Gain, count, known_to, sampling_range, where
from tdiag.rules.examples import budget, loaders, phases, stack, stacks, system
from tdiag.rules.feed import feed_of, share_of_rank
from tdiag.rules.fetch_lines import (
    fetch_measure,
    fetch_samples,
    function_of,
    largest_function,
    spread_work,
)
from tdiag.rules.thresholds import LOW_END_FRAC
from tdiag.units import duration, percent

CODE = "TD221"
NAME = "work-spread-over-fetch"
CLASS = "cpu"
UNTRIED = "what can replace the functions is unknown; `--freeze` of one bounds the gain"
AFTER = {
    "TD102": "reading only what is used may make the functions cheap",
    "TD201": "workers run the functions while the training computes",
    "TD206": "a faster collate_fn may be most of the work",
    "TD207": "tensors from arrays instead of lists may make the functions cheap",
    "TD209": "a cache runs the functions once",
    "TD210": "a tensor instead of the table makes the functions cheap",
    "TD220": "smaller pictures may make the functions cheap",
}


def check(
    budget: Budget,
    stacks: Stacks,
    loaders: Loaders,
    system: System,
    phases: Phases | None,
    threads: Threads | None,
) -> Found | None:
    fed = feed_of(budget, loaders, phases, system := share_of_rank(system, threads))
    lines = spread_work(fed, stacks)
    if fed is None or not lines or fed.out_of_cores(system):
        return None
    seen = fetch_samples(fed, stacks)
    largest = largest_function(lines)
    share, most_share = (sum(x.self_frac for x in part) for part in (largest, lines))
    least, most = known_to(share, seen)[0], known_to(most_share, seen)[1]
    functions = len({(x.at.file, function_of(x)) for x in lines})
    top = lines[0]
    return Found(
        summary=(
            f"{percent(fed.wait / fed.step)} of the step waits for data, and"
            f" {percent(most_share)} of the fetch is spread over {functions} functions"
            f" ({duration(most_share * fed.wall)} per step): {percent(share)} in"
            f" {function_of(top)}, most of it{where(top.at)}."
        ),
        evidence=(
            *map(fetch_measure, sorted(lines, key=lambda x: -x.self_frac)[:3]),
            count("samples of fetches", seen, "sample"),
            *fed.measures(),
        ),
        fix=Fix(
            f"Put what makes the data smaller (crop, resize, select) before {function_of(top)}"
            f"{where(top.at)} and the other expensive functions, do what is not random once,"
            " offline, and work on whole batches. Then raise num_workers.",
            "manual",
            action="Give the functions of the fetch less to work on",
        ),
        gain=Gain(
            fed.gain_of_saving(fed.wall * least * LOW_END_FRAC),
            fed.gain_of_saving(fed.wall * most),
            "high end: these functions are gone; low end: the largest costs half."
            f" {sampling_range(seen, least, most)}.",
            DATA_WAIT,
            fetches=True,
        ),
        at=top.at,
    )


def fires() -> Evidence:
    return _fetching("blurred")


def clear() -> Evidence:
    """One function has most of the samples."""
    return _fetching("rotated")


def _fetching(second: str) -> Evidence:
    lines = (
        stack(29, 0.4, "rotate (PIL/Image.py)", function="rotated"),
        stack(31, 0.35, "filter (PIL/Image.py)", function=second),
        stack(45, 0.15, "", function="as_array"),
    )
    step = budget(data_wait_cpu=60, forward=8, backward=10, optimizer=2)
    waiting = phases(data_wait=60, forward=8)
    return Evidence().add(step, loaders(num_workers=1), system(), waiting, stacks(workers=lines))
