"""One function takes most of the fetch

## What it measures
Samples of the workers while they fetch (without workers: of the data wait), by the user's line; and
the time of a fetch on a core. Reported if the lines of one function together have more than half of
the samples, with their sampling error, none of them alone has (TD218), and cores are left. On full
cores TD202 reports it. If the loop makes its batches itself, without a DataLoader: samples of the
lines before the forward, and the time between steps; there one line is enough, and a function
counts with what it calls if none has half of them alone. What the loop calls again later in the
step, such as a schedule, makes no batch and does not count. Between an agent's actions the class is
`rollout`.

## Why it is slow
Every sample of every epoch pays for this function, in each worker.

## What to do
If cores are free and a DataLoader makes the batches, let workers run it while the training
computes. Then make it cheaper, beginning with its most expensive line, which the finding names: do
it once and keep the result if it does not change, on smaller inputs, or on whole batches.

## How the gain is computed
The function's share of the samples as time of the fetch. With workers the step shrinks in
proportion to the fetch. High end: without the function. Low end: the function at half its cost.

## When this advice is wrong
Work that must be done for each sample in each epoch and already uses the fastest library can only
be spread: then more workers are the answer.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from tdiag.evidence.feeding import Loaders
from tdiag.evidence.machine import Environment, System, Threads
from tdiag.evidence.sampled import CallFrame, CallTrees, StackLine, Stacks
from tdiag.evidence.steps import Budget, Phases
from tdiag.evidence.store import Evidence
from tdiag.evidence.torch_ops import Calls, Ops
from tdiag.evidence.training import Flags
from tdiag.model.diagnosis import Fix
from tdiag.model.threshold import MAJORITY_FRAC, NOTICEABLE_FRAC
from tdiag.rules.base import (
    Found,
    Gain,
    count,
    frac,
    known_to,
    ns,
    same_function,
    sampling_range,
    where,
)
from tdiag.rules.both_sides import on_both_sides
from tdiag.rules.evaluation import rolls_out
from tdiag.rules.examples import budget, loaders, phases, stack, stacks, system
from tdiag.rules.feed import feed_of, share_of_rank
from tdiag.rules.fetch_lines import (
    by_hand_ns,
    expensive_fetch,
    function_of,
    largest_function,
    main_function,
    share_of,
)
from tdiag.rules.loop_lines import BEFORE, beside_the_step, of_the_loss, with_what_it_calls
from tdiag.rules.thresholds import LOW_END_FRAC
from tdiag.units import duration, percent

CODE = "TD219"
NAME = "one-function-dominates-fetch"
CLASS = "cpu"
UNTRIED = "what can replace the function is unknown; `--freeze` of it bounds the gain"
AFTER = {
    "TD230": "the function may run once for each item",
    "TD229": "what is kept need not be cheap",
    "TD102": "reading only what is used may make the function cheap",
    "TD201": "workers run the function while the training computes",
    "TD207": "tensors from arrays instead of lists may make the function cheap",
    "TD209": "a cache runs the function once",
    "TD210": "a tensor instead of the table makes the function cheap",
    "TD220": "smaller pictures may make the function cheap",
}


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
    flags: Flags | None,
    calls: Calls | None,
) -> Found | None:
    wall = by_hand_ns(budget, phases, environment, loaders)
    if phases and wall >= NOTICEABLE_FRAC * budget.step_ns and not budget.has_device:
        whole, cpu = (x.get("prepare", 0.0) for x in (phases.wall_ns, phases.cpu_ns))
        if phases.made_beside:
            return _by_hand(
                wall,
                "A thread of the script makes the batches, which",
                stacks.beside,
                budget,
                stacks,
                ops,
                (),
            )
        if cpu <= MAJORITY_FRAC * whole:
            return None  # it waits
        others = of_the_loss(stacks, ops, trees) | on_both_sides(ops, trees)
        before = beside_the_step(BEFORE, stacks, ops, trees)
        lines = [line for line in before if line.at.spot not in others]
        frames = trees.training if trees else ()
        does, cls = "The loop itself makes the batches, which", CLASS
        if rolls_out(phases, flags, calls):
            does, cls = "What comes between an agent's actions", "rollout"
        return _by_hand(wall, does, lines, budget, stacks, ops, frames, cls)
    if loaders is None or system is None:
        return None
    fed = feed_of(budget, loaders, phases, system := share_of_rank(system, threads))
    lines = main_function(fed, stacks)
    if fed is None or not lines or fed.out_of_cores(system):
        return None
    top = lines[0].at
    part = f"in {function_of(lines[0])}, most of it{where(top)}"
    return expensive_fetch(fed, lines, stacks, part, "function")


def _by_hand(
    wall: float,
    does: str,
    found: Sequence[StackLine],
    budget: Budget,
    stacks: Stacks,
    ops: Ops | None,
    frames: Sequence[CallFrame],
    cls: str = CLASS,
) -> Found | None:
    """What the script does between its steps at the lines ``found``: the loop ``does`` it, or waits
    for it, in ``wall`` ns per step. A single line is enough. ``frames``: who calls them."""
    # Samples of libraries' threads and similar belong to no line.
    whole = max(sum(line.self_frac for line in found), wall / budget.step_ns)
    lines, below = largest_function(found), ""
    if share_of(lines) <= MAJORITY_FRAC * whole and (wider := with_what_it_calls(found, frames)):
        lines, below = wider, " and what it calls"
    share = share_of(lines) / whole if whole else 0.0
    seen = round(whole * stacks.samples)
    least, most = known_to(share, seen)
    if least <= MAJORITY_FRAC or _named_elsewhere(lines, ops):
        return None
    top = lines[0]
    return Found(
        summary=(
            f"{does} takes {percent(wall / budget.step_ns)} of the step."
            f" {percent(share)} of that is in {function_of(top)}{below}, most of it{where(top.at)}"
            f" ({duration(share * wall)} per step)."
        ),
        evidence=(
            *(
                frac(f"samples between steps{where(x.at)}", x.self_frac / whole, "sample")
                for x in lines[:3]
            ),
            count("samples between steps", seen, "sample"),
            ns("between the steps", wall, "budget"),
        ),
        fix=Fix(
            f"Make the work{where(top.at)} cheaper: cache its result if it never changes, shrink"
            " its inputs, or do it on whole batches.",
            "manual",
            action="Make this function cheaper",
        ),
        gain=Gain(
            wall * least * LOW_END_FRAC,
            wall * most,
            "high end: the function is gone; low end: it costs half."
            f" {sampling_range(seen, least, most)}.",
            ("prepare",),
            fetches=True,
        ),
        at=top.at,
        cls=cls,
    )


def _named_elsewhere(lines: Sequence[StackLine], ops: Ops | None) -> bool:
    """Whether the function is the training loop itself, or most of its samples are in one line of
    Python between torch calls, which TD709 reports."""
    if ops is None:
        return False
    top = lines[0]
    mine = replace(top.at, function=function_of(top))
    phases = {x.phase for x in ops.lines if same_function(x.at, mine)}
    python = top.own_frac > MAJORITY_FRAC * sum(line.self_frac for line in lines)
    return bool(phases - {"prepare"}) or (python and bool(phases))


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
