"""Each worker makes all samples and drops those of the others

## What it measures
Samples of the loader's workers in lines of an `IterableDataset`'s `__iter__`, and what these lines
call: work on each item that comes before the script asks, by a remainder (`i % world == rank`),
whose item it is. The order is read from the source, which must call `get_worker_info`.

## Why it is slow
Every worker runs the whole loop. With four workers each item is read, parsed and transformed four
times, and three of the results are thrown away: more workers make none of it faster.

## What to do
Ask first, then work: `if i % world != rank: continue` as the first statement of the loop, or
`itertools.islice(lines, rank, None, world)`. Reading a line and counting it is cheap.

## How the gain is computed
The share of the fetches in these lines × the other workers' share, n − 1 of n. Low end: half of
that, because the work on a worker's own items may differ. If no core is left, the step gets faster
by the time on a core that is spared ÷ the cores.

## When this advice is wrong
If the work decides whose item it is: a key that has to be parsed first.
"""

from __future__ import annotations

import ast
import linecache
from collections.abc import Iterator

from tdiag.evidence.feeding import Loaders
from tdiag.evidence.machine import System, Threads
from tdiag.evidence.sampled import CallFrame, CallTrees, Stacks
from tdiag.evidence.steps import Budget, Phases
from tdiag.evidence.store import Evidence
from tdiag.model.diagnosis import Fix
from tdiag.model.place import Place
from tdiag.rules.base import (
    COMPUTE,
    DATA_WAIT,
    Found,
    Gain,
    count,
    frac,
    known_to,
    sampling_range,
    where,
)
from tdiag.rules.callers import inclusive_of_lines
from tdiag.rules.examples import MS, budget, loaders, phases, stack, stacks, system
from tdiag.rules.feed import asks_for_worker, feed_of, share_of_rank
from tdiag.rules.syntax import function_at
from tdiag.rules.thresholds import LOW_END_FRAC
from tdiag.units import duration, percent

CODE = "TD230"
NAME = "workers-drop-samples"
CLASS = "cpu"
UNTRIED = "the order of the statements must change in the script"


def check(
    budget: Budget,
    loaders: Loaders,
    system: System,
    stacks: Stacks,
    trees: CallTrees,
    phases: Phases | None,
    threads: Threads | None,
) -> Found | None:
    fed = feed_of(budget, loaders, phases, system := share_of_rank(system, threads))
    workers = fed.loader.num_workers if fed else 0
    if fed is None or workers < 2:
        return None
    lines = [
        Place(file=x.file, line=x.line, function=x.name)
        for x in trees.workers
        if x.user and x.name.rpartition(".")[2] == "__iter__"
    ]
    dropped = {at for at in lines if asks_for_worker(at.file) and _before_the_question(at)}
    share = inclusive_of_lines({at.spot for at in dropped}, trees, workers=True)
    if not share:
        return None
    least, most = (fed.wall * x for x in known_to(share, stacks.worker_samples))
    at = max(dropped, key=lambda x: inclusive_of_lines({x.spot}, trees, workers=True))
    others = 1 - 1 / workers
    busy = fed.out_of_cores(system)

    def saves(fetch_ns: float) -> float:
        return max(fed.gain_of_saving(fetch_ns), fetch_ns / system.cores_allowed if busy else 0.0)

    return Found(
        summary=(
            f"Each of the {workers} workers makes all samples{where(at)} and then drops those of"
            f" the others: {percent(others)} of {duration(fed.wall * share)} per step."
        ),
        evidence=(
            count("num_workers", workers, "probe"),
            frac(f"samples of the fetches{where(at)} and in what it calls", share, "fetch"),
            *fed.measures()[1:3],
        ),
        fix=Fix(
            f"Ask whose item it is before the work{where(at)}.",
            "review",
            action="Skip the other workers' items before working on them",
            code="for i, line in enumerate(file):\n"
            "    if i % world != rank:\n"
            "        continue  # another worker's\n"
            "    yield featurize(line)",
        ),
        gain=Gain(
            saves(least * others * LOW_END_FRAC),
            saves(most * others),
            f"high end: each item is worked on by one of {workers} workers; low end: half of that."
            f" {sampling_range(stacks.worker_samples, least / fed.wall, most / fed.wall)}.",
            (*DATA_WAIT, *COMPUTE) if busy else DATA_WAIT,
        ),
        at=at,
    )


def _before_the_question(at: Place) -> bool:
    """Whether the line works on an item in a loop that asks only later, by a remainder that this
    work does not give, whether the item is the worker's own."""
    function = function_at(at)
    loops = (x for x in ast.walk(function) if isinstance(x, ast.For)) if function else ()
    return any(_works_first(loop, at.line) for loop in loops)


def _works_first(loop: ast.For, line: int) -> bool:
    made: set[str] = set()
    works = False
    for statement in loop.body:
        if isinstance(statement, ast.If) and _asks(statement):
            return works and not made & {x.id for x in _names(statement.test)}
        if statement.lineno <= line <= (statement.end_lineno or 0):
            works = any(isinstance(x, ast.Call) for x in ast.walk(statement))
        made |= {x.id for x in _names(statement) if isinstance(x.ctx, ast.Store)}
    return False


def _asks(statement: ast.If) -> bool:
    """A test that compares a remainder with a number of the worker's, and yields the item or goes
    on to the next one. ``i % 10 == 0`` takes every tenth, whoever works."""
    return any(map(_compares, ast.walk(statement.test))) and any(
        isinstance(x, ast.Yield | ast.Continue) for y in statement.body for x in ast.walk(y)
    )


def _compares(node: ast.AST) -> bool:
    if not isinstance(node, ast.Compare):
        return False
    sides = [node.left, *node.comparators]
    rests = [x for x in sides if isinstance(x, ast.BinOp) and isinstance(x.op, ast.Mod)]
    return bool(rests) and not any(isinstance(x, ast.Constant) for x in sides)


def _names(node: ast.AST) -> Iterator[ast.Name]:
    return (x for x in ast.walk(node) if isinstance(x, ast.Name))


_STREAM = """class Stream(IterableDataset):
    def __iter__(self):
        info = get_worker_info()
        for i, line in enumerate(open(self.path)):
            sample = featurize(line)
            if i % info.num_workers == info.id:
                yield sample
"""


def fires() -> Evidence:
    """Each worker parses all lines of a file."""
    return _streaming(5)


def clear() -> Evidence:
    """The line that yields comes after the question."""
    return _streaming(7)


def _streaming(line: int) -> Evidence:
    file = "/home/me/stream.py"
    # As if it were there: no example can be judged without its source.
    linecache.cache[file] = len(_STREAM), None, _STREAM.splitlines(keepends=True), file
    worker = CallFrame(name="Stream.__iter__", file=file, line=line, parent=-1, frac=0.9, user=True)
    step = budget(data_wait_cpu=60, forward=8, backward=10, optimizer=2)
    return Evidence().add(
        step,
        loaders(num_workers=2, load_ns=150 * MS, load_cpu_ns=150 * MS),
        system(),
        phases(data_wait=60, forward=8),
        stacks(workers=(stack(line, 0.9, function="Stream.__iter__"),)),
        CallTrees(training=(), workers=(worker,)),
    )
