"""Tensors built from Python lists

## What it measures
User lines that build tensors from Python data (`torch.tensor`, `as_tensor`, `stack` of Python
objects): how often in a step, and the time inside these calls. In loader workers, where calls are
not counted, samples of lines whose own text says so.

## Why it is slow
`torch.tensor(list)` looks at every element twice, once for its type and once for its value, and
takes tens of nanoseconds for each; a NumPy array handed over without copying takes none.

## What to do
Keep data as arrays or tensors from the start: `torch.from_numpy(array)`, `torch.as_tensor(array)`,
or fill a tensor made once.

## How the gain is computed
The time inside the calls, or of the samples on their lines, whichever is more. Low end: half of the
lesser, if the values have to be gathered into an array first.

## When this advice is wrong
`from_numpy` shares memory: a later write to the array shows in the tensor. What torch's own
`default_collate` converts is no line of yours: see TD206 and TD213.
"""

from __future__ import annotations

import linecache
import re

from tdiag.evidence.data import Loaders
from tdiag.evidence.kinds import Budget, OpLine, Ops, Phases, Stacks, System
from tdiag.evidence.store import Evidence
from tdiag.model.diagnosis import Fix
from tdiag.rules.base import DATA_WAIT, Abstain, Found, Gain, where
from tdiag.rules.examples import MS, budget, op_line, ops
from tdiag.rules.feed import feed_of
from tdiag.rules.fetch_lines import fetch_samples, takes_batches, top_fetch_lines
from tdiag.rules.measures import count, ns
from tdiag.rules.samples import known_to
from tdiag.units import duration, percent, plural

CODE = "TD207"
NAME = "tensors-from-python-lists"
CLASS = "cpu"

# On a line with other calls too, the time is theirs as well: only lines that mostly construct.
MOSTLY_FRAC = 0.5
# Half may stay if the values must first be gathered into an array.
SAVING_LOW_FRAC = 0.5
# How a line spells the construction of a tensor from Python data.
CONSTRUCTS = re.compile(r"\btorch\.(tensor|(Float|Long|Int|Double|Bool)Tensor)\(")


def check(
    budget: Budget,
    ops: Ops | None,
    loaders: Loaders | None,
    stacks: Stacks | None,
    system: System | None,
    phases: Phases | None,
) -> Found | None:
    if ops is None and stacks is None:
        raise Abstain("neither torch calls (window ops) nor samples were captured")
    in_workers = _in_workers(budget, loaders, stacks, system, phases)
    lines = _constructing(ops, loaders) if ops else []
    if not lines:
        return in_workers
    cost = sum(line.elapsed_ns for line in lines)
    made = sum(line.constructions for line in lines)
    worst = max(lines, key=lambda line: line.elapsed_ns)
    return Found(
        summary=(
            f"Python data is made into {plural(round(made), 'tensor')} a step, which takes"
            f" {duration(cost)} ({percent(cost / budget.step_ns)} of the step), most of it"
            f"{where(worst.at)}."
        ),
        evidence=(
            count("tensors built from Python data", made, "ops", "per_step"),
            ns("time in these calls", cost, "ops"),
        ),
        fix=Fix(
            f"Hold the values{where(worst.at)} in a NumPy array or tensor from the start and use"
            " torch.from_numpy(array) (or torch.as_tensor), once for the whole batch.",
            "safe",
        ),
        gain=_gain(cost, _sampled(lines, stacks) * budget.step_ns),
        at=worst.at,
    )


def _sampled(lines: list[OpLine], stacks: Stacks | None) -> float:
    """The share of the training thread's samples on these lines."""
    places = {(line.at.file, line.at.line) for line in lines}
    training = stacks.training if stacks else ()
    return sum(x.self_frac for x in training if (x.at.file, x.at.line) in places)


def _constructing(ops: Ops, loaders: Loaders | None) -> list[OpLine]:
    """Without the line that only takes batches: there torch's own collate_fn converts what the
    dataset returns."""
    loader = loaders.train() if loaders else None
    training = [line.at for line in ops.lines if line.phase != "data_wait"]
    return [
        line
        for line in ops.lines
        if line.constructions > MOSTLY_FRAC * line.calls
        and not (line.phase == "data_wait" and takes_batches(line.at, loader, training))
    ]


def _gain(counted: float, sampled: float = 0.0) -> Gain:
    """``counted``, ``sampled``: ns a step in the calls, as two tools saw it at different times."""
    low, high = sorted((counted, sampled or counted))
    why = "the time inside the constructing calls; low end: half of it, to gather the values first."
    return Gain(low * SAVING_LOW_FRAC, high, why, (*DATA_WAIT, "prepare", "forward", "loss"))


def _in_workers(
    budget: Budget,
    loaders: Loaders | None,
    stacks: Stacks | None,
    system: System | None,
    phases: Phases | None,
) -> Found | None:
    """Lines in loader workers whose text constructs tensors from Python data."""
    if loaders is None or system is None:
        return None
    fed = feed_of(budget, loaders, phases, system)
    if fed is None or not fed.loader.num_workers or fed.blocked_mostly:
        return None
    lines = [
        line
        for line in top_fetch_lines(fed, stacks)
        if line.at != fed.loader.created_at  # that line stands for a library's dataset
        and CONSTRUCTS.search(linecache.getline(line.at.file, line.at.line))
    ]
    if not lines:
        return None
    share = sum(line.self_frac for line in lines)
    seen = fetch_samples(fed, stacks) if stacks else 0
    return Found(
        summary=(
            f"{percent(share)} of the workers' fetch time builds tensors from Python data"
            f"{where(lines[0].at)}."
        ),
        evidence=(count("samples of the workers", seen, "sample"),),
        fix=Fix(
            f"Return torch.from_numpy(array){where(lines[0].at)} instead of a tensor made from a"
            " Python list.",
            "safe",
        ),
        gain=_gain(*(fed.gain_of_saving(fed.wall * known) for known in known_to(share, seen))),
        at=lines[0].at,
    )


def fires() -> Evidence:
    line = op_line(18, "prepare", 64, constructions=64.0, elapsed_ns=12 * MS, in_loop=True)
    return Evidence().add(budget(data_wait_cpu=14, forward=8, backward=12), ops(line))


def clear() -> Evidence:
    """As many constructions, but from arrays: nothing is converted."""
    line = op_line(18, "prepare", 64, constructions=64.0, elapsed_ns=0.2 * MS, in_loop=True)
    return Evidence().add(budget(data_wait_cpu=14, forward=8, backward=12), ops(line))
