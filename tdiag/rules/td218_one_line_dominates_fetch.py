"""One line or function takes most of making a batch

## What it measures
Samples of the workers while they fetch (without workers: of the data wait; without a DataLoader: of
the lines before the forward), by the user's line. Reported if one line, or the lines of one
function that the dataset calls, have more than half of the samples, with their sampling error, and
cores are left. On full cores TD202 says so.

## Why it is slow
Every sample of every epoch pays for this work, in each worker. More workers spread it over more
cores and still do it.

## What to do
Make it cheaper first: do it once and keep the result if it does not change, on smaller inputs, or
on whole batches. Then, if the loop still waits, raise `num_workers`.

## How the gain is computed
The share of the samples as time of the fetch. With workers the step shrinks in proportion to the
fetch. High end: without this work. Low end: at half its cost.

## When this advice is wrong
Work that must be done for each sample in each epoch, by the fastest library there is, is only
spread: then workers are the answer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from tdiag.evidence.feeding import Loaders
from tdiag.evidence.machine import Environment, System, Threads
from tdiag.evidence.ops import Ops
from tdiag.evidence.sampled import CallTrees, StackLine, Stacks
from tdiag.evidence.steps import Budget, Phases
from tdiag.evidence.store import Evidence
from tdiag.model.diagnosis import Fix, Measure
from tdiag.model.threshold import MAJORITY_FRAC, NOTICEABLE_FRAC
from tdiag.rules.base import DATA_WAIT, Found, Gain, same_function, where
from tdiag.rules.examples import budget, loaders, phases, stack, stacks, system
from tdiag.rules.feed import feed_of, share_of_rank
from tdiag.rules.fetch_lines import (
    by_hand_ns,
    fetch_measure,
    fetch_samples,
    function_of,
    main_function,
    top_fetch_lines,
)
from tdiag.rules.loop_lines import BEFORE, beside_the_step
from tdiag.rules.measures import count, known_to, ns
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

# Methods that torch calls for a sample.
_PROTOCOL = ("__getitem__", "__getitems__", "__iter__", "__next__")


@dataclass(frozen=True)
class _Making:
    """Making one step's batches: its lines as shares of ``seen`` samples, its time in ns, and what
    the step gains by so many ns less of it."""

    lines: Sequence[StackLine]
    seen: int
    wall: float
    gain: Callable[[float], float]
    what: str
    before: str  # begins the summary
    components: tuple[str, ...]
    measures: tuple[Measure, ...]
    then: str = ""


def check(
    budget: Budget,
    stacks: Stacks,
    loaders: Loaders | None,
    system: System | None,
    phases: Phases | None,
    threads: Threads | None,
    environment: Environment | None,
    ops: Ops | None,
    trees: CallTrees | None,
) -> Found | None:
    making = _by_hand(budget, stacks, phases, environment, loaders, ops, trees)
    if making is None and loaders is not None and system is not None:
        making = _fetching(budget, stacks, loaders, share_of_rank(system, threads), phases)
    if making is None or not making.lines:
        return None
    top, function = making.lines[0], main_function(making.lines, making.seen)
    alone = known_to(top.self_frac, making.seen)[0] > MAJORITY_FRAC
    if not alone and (not function or _is_entry(function, loaders, ops)):
        return None
    lines, unit = ([top], "line") if alone else (function, "function")
    top, share = lines[0], min(1.0, sum(line.self_frac for line in lines))
    least, most = known_to(share, making.seen)
    leaf = f" ({top.leaf})" if top.leaf else ""
    place = f"{where(top.at)} in {top.leaf or top.at.function}"
    if not alone:
        place = f" in {function_of(top)}, most of it{where(top.at)}"
    return Found(
        summary=(
            f"{making.before}, and {percent(share)} of {making.what} is{place}"
            f" ({duration(share * making.wall)} per step)."
        ),
        evidence=(
            *(fetch_measure(line) for line in (lines if not alone else making.lines)[:3]),
            count("samples of fetches", making.seen, "sample"),
            *making.measures,
        ),
        fix=Fix(
            f"Make the work{where(top.at)}{leaf} cheaper: do it once and keep the result if it does"
            f" not change, on smaller inputs, or on whole batches.{making.then}",
            "manual",
            action=f"Make the {unit} that takes most of {making.what} cheaper",
        ),
        gain=Gain(
            making.gain(making.wall * least * LOW_END_FRAC),
            making.gain(making.wall * most),
            f"high end: without the {unit}; low end: at half its cost; {making.seen:,} samples put"
            f" its share between {percent(least)} and {percent(most)}.",
            making.components,
        ),
        at=top.at,
    )


def _fetching(
    budget: Budget, stacks: Stacks, loaders: Loaders, system: System, phases: Phases | None
) -> _Making | None:
    fed = feed_of(budget, loaders, phases, system)
    if fed is None or fed.blocked_mostly or fed.from_memory or fed.out_of_cores(system):
        return None
    lines = top_fetch_lines(fed.loader, stacks, most=len(stacks.training) + len(stacks.workers))
    if not lines or lines[0].at == fed.loader.created_at:
        return None  # a library's dataset does the work
    return _Making(
        lines,
        fetch_samples(fed, stacks),
        fed.wall,
        fed.gain_of_saving,
        "the fetch",
        f"{percent(fed.wait / fed.step)} of the step waits for data",
        DATA_WAIT,
        fed.measures(),
        " Then raise num_workers.",
    )


def _by_hand(
    budget: Budget,
    stacks: Stacks,
    phases: Phases | None,
    environment: Environment | None,
    loaders: Loaders | None,
    ops: Ops | None,
    trees: CallTrees | None,
) -> _Making | None:
    """Batches that the loop makes itself. One line of Python between torch calls is TD709's."""
    wall = by_hand_ns(budget, phases, environment, loaders)
    found = beside_the_step(BEFORE, stacks, ops, trees)
    whole = sum(line.self_frac for line in found)
    if wall < NOTICEABLE_FRAC * budget.step_ns or not whole:
        return None
    lines = [replace(line, self_frac=line.self_frac / whole) for line in found]
    python = found[0].own_frac > MAJORITY_FRAC * found[0].self_frac
    if python and ops and any(same_function(x.at, found[0].at) for x in ops.lines):
        return None
    return _Making(
        lines,
        round(whole * stacks.samples),
        wall,
        lambda saved: min(wall, saved),
        "making a batch",
        f"The loop makes each batch itself in {percent(wall / budget.step_ns)} of the step",
        ("prepare",),
        (ns("between the steps", wall, "budget"),),
    )


def _is_entry(lines: Sequence[StackLine], loaders: Loaders | None, ops: Ops | None) -> bool:
    """These are lines of the dataset's or the collate function, or of the loop that also trains:
    that such a function makes the batches says nothing new."""
    train = loaders.train() if loaders else None
    entries = [train.dataset_at, train.collate_at] if train else []
    entries += [x.at for x in ops.lines if x.phase not in ("prepare", "data_wait")] if ops else []
    mine = replace(lines[0].at, function=function_of(lines[0]))
    return mine.function.rsplit(".", 1)[-1] in _PROTOCOL or any(
        at is not None and same_function(at, mine) for at in entries
    )


def fires() -> Evidence:
    return _fetches(0.61)


def clear() -> Evidence:
    """No line has most of the samples."""
    return _fetches(0.45)


def _fetches(share: float) -> Evidence:
    lines = (
        stack(29, share, "rotate (PIL/Image.py)", function="__getitem__"),
        stack(31, 0.3, "resize (PIL/Image.py)", function="__getitem__"),
    )
    step = budget(data_wait_cpu=60, forward=8, backward=10, optimizer=2)
    waiting = phases(data_wait=60, forward=8)
    return Evidence().add(step, loaders(num_workers=1), system(), waiting, stacks(workers=lines))
