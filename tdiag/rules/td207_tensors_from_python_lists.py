"""Tensors are built from Python lists

## What it measures
User lines that build tensors from Python data (`torch.tensor`, `as_tensor`, `stack` of Python
objects): how often per step, and the time in these calls. In loader workers, where calls are not
counted: samples of lines whose text builds tensors.

## Why it is slow
`torch.tensor(list)` reads every element twice, for its type and for its value, and takes tens of
nanoseconds for each. A NumPy array is handed over without copying.

## What to do
Keep data as arrays or tensors from the start: `torch.from_numpy(array)`, `torch.as_tensor(array)`,
or fill a tensor that is created once.

## How the gain is computed
The time in the calls, or of the samples on their lines, whichever is more, and of the samples on
lines of a fetch without workers that make lists of arrays (`tolist`). Low end: 85 % of the smaller
of the two, without these lines, because gathering the values into an array takes time, too.

## When this advice is wrong
`from_numpy` shares memory: a later write to the array changes the tensor. Conversions by torch's
own `default_collate` are not reported here: see TD206 and TD213.
"""

from __future__ import annotations

import linecache
import re

from tdiag.evidence.feeding import Loaders
from tdiag.evidence.machine import System
from tdiag.evidence.sampled import Stacks
from tdiag.evidence.steps import Budget, Phases
from tdiag.evidence.store import Evidence
from tdiag.evidence.torch_ops import OpLine, Ops
from tdiag.model.diagnosis import Fix, Measure
from tdiag.model.place import Place
from tdiag.rules.base import DATA_WAIT, Abstain, Found, Gain, count, known_to, ns, where
from tdiag.rules.examples import MS, budget, op_line, ops
from tdiag.rules.feed import feed_of
from tdiag.rules.fetch_lines import fetch_samples, takes_batches, top_fetch_lines
from tdiag.rules.loop_lines import FORWARD
from tdiag.rules.thresholds import REPLACED_LOW_FRAC
from tdiag.units import per_step, percent, plural

CODE = "TD207"
NAME = "tensors-from-python-lists"
CLASS = "cpu"
AFTER = {"TD229": "what is kept is not made of lists in each step"}
UNTRIED = "needs other code where the lists are made; `ceiling.data` bounds the gain"

# The text of a line that builds a tensor from Python data.
CONSTRUCTS = re.compile(r"\btorch\.(tensor|(Float|Long|Int|Double|Bool)Tensor)\(")


# That of a line that makes a list of an array, which is then not needed.
_LISTS = re.compile(r"\.tolist\(")
IN_STEP = ("prepare", *FORWARD)


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
    return _found(
        f"Building {plural(round(made), 'tensor')} from Python data takes"
        f" {per_step(cost, budget.step_ns)}, most of it{where(worst.at)}.",
        (
            count("tensors built from Python data", made, "ops", "per_step"),
            ns("time in these calls", cost, "ops"),
        ),
        worst.at,
        cost,
        _sampled(lines, stacks) * budget.step_ns,
        _components({line.phase for line in lines}),
        _making_lists(stacks) * budget.step_ns if worst.phase == "data_wait" else 0.0,
        cls="overhead" if worst.phase in FORWARD else "",  # no batch is made there
    )


def _components(phases: set[str]) -> tuple[str, ...]:
    """The budget components of the phases in which tensors are built."""
    others = tuple(x for x in IN_STEP if x in phases)
    return (*(DATA_WAIT if "data_wait" in phases or not others else ()), *others)


def _sampled(lines: list[OpLine], stacks: Stacks | None) -> float:
    """The share of the training thread's samples on these lines."""
    places = {line.at.spot for line in lines}
    training = stacks.training if stacks else ()
    return sum(x.self_frac for x in training if x.at.spot in places)


def _making_lists(stacks: Stacks | None) -> float:
    """The share of the training thread's samples on lines of the fetch that make lists of
    arrays."""
    fetched = [x for x in stacks.training if x.phase == "data_wait"] if stacks else []
    return sum(x.self_frac for x in fetched if _LISTS.search(linecache.getline(*x.at.spot)))


def _constructing(ops: Ops, loaders: Loaders | None) -> list[OpLine]:
    """Lines that mostly build tensors, except the line that takes batches, where torch's own
    collate_fn converts the dataset's samples."""
    loader = loaders.train() if loaders else None
    training = [line.at for line in ops.lines if line.phase != "data_wait"]
    return [
        line
        for line in ops.lines
        if line.constructs
        and not (line.phase == "data_wait" and takes_batches(line.at, loader, training))
    ]


def _found(
    summary: str,
    evidence: tuple[Measure, ...],
    at: Place,
    one_ns: float,
    other_ns: float,
    components: tuple[str, ...] = DATA_WAIT,
    lists_ns: float = 0.0,
    cls: str = "",
) -> Found:
    """``one_ns``, ``other_ns``: two measurements of the time in the calls, per step; 0 if none.
    ``lists_ns``: of making the lists."""
    low, high = sorted((one_ns, other_ns or one_ns))
    how = percent(REPLACED_LOW_FRAC)
    lists = " and of making lists for them" if lists_ns else ""
    why = f"high end: all of the time in these calls{lists}; low end: {how} of the calls' time."
    return Found(
        summary=summary,
        evidence=evidence,
        fix=Fix(
            f"Keep the values{where(at)} in a NumPy array from the start, and convert it with"
            " torch.from_numpy(array).",
            "safe",
            action="Build tensors from arrays instead of Python lists",
        ),
        gain=Gain(low * REPLACED_LOW_FRAC, high + lists_ns, why, components),
        at=at,
        cls=cls,
    )


def _in_workers(
    budget: Budget,
    loaders: Loaders | None,
    stacks: Stacks | None,
    system: System | None,
    phases: Phases | None,
) -> Found | None:
    """Lines in loader workers whose text builds tensors from Python data."""
    if loaders is None or system is None:
        return None
    fed = feed_of(budget, loaders, phases, system)
    if fed is None or not fed.loader.num_workers or fed.blocked_mostly:
        return None
    lines = [
        line
        for line in top_fetch_lines(fed.loader, stacks)
        if line.at != fed.loader.created_at  # that line represents a library's dataset
        and CONSTRUCTS.search(linecache.getline(*line.at.spot))
    ]
    if not lines:
        return None
    share = sum(line.self_frac for line in lines)
    seen = fetch_samples(fed, stacks) if stacks else 0
    least, most = (fed.gain_of_saving(fed.wall * known) for known in known_to(share, seen))
    return _found(
        f"Building tensors from Python data{where(lines[0].at)} takes {percent(share)} of the"
        " workers' fetch time.",
        (count("samples of the workers", seen, "sample"),),
        lines[0].at,
        least,
        most,
    )


def fires() -> Evidence:
    line = op_line(18, "prepare", 64, constructions=64.0, elapsed_ns=12 * MS, in_loop=True)
    return Evidence().add(budget(prepare=14, forward=8, backward=12), ops(line))


def clear() -> Evidence:
    """As many tensors built from arrays: nothing is converted."""
    line = op_line(18, "prepare", 64, constructions=64.0, elapsed_ns=0.2 * MS, in_loop=True)
    return Evidence().add(budget(prepare=14, forward=8, backward=12), ops(line))
