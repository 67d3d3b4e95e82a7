"""Which of the user's lines fetching spends its time on: sampled lines, and the dataset's own."""

from __future__ import annotations

import linecache
import re
from collections import defaultdict
from collections.abc import Sequence

from msgspec.structs import replace

from tdiag.evidence.feeding import Loader, Loaders
from tdiag.evidence.machine import Environment
from tdiag.evidence.sampled import StackLine, Stacks
from tdiag.evidence.steps import Budget, Phases
from tdiag.model.diagnosis import Fix, Measure
from tdiag.model.place import Place
from tdiag.model.threshold import MAJORITY_FRAC
from tdiag.probe.wire import is_user_file
from tdiag.rules.base import (
    DATA_WAIT,
    Found,
    Gain,
    count,
    frac,
    held,
    known_to,
    same_function,
    sampling_range,
    where,
)
from tdiag.rules.feed import Feed
from tdiag.rules.thresholds import LOW_END_FRAC
from tdiag.units import duration, percent

FETCH_SAMPLES = "fetch samples"  # the beginning of these measures' names
# A comprehension, lambda or inner function, in the name of its frame.
_INNER = re.compile(r"\.<locals>.*")
# While torch's code fetches, the user's innermost line is the loop over the loader.
_TAKES_BATCHES = re.compile(r"^\s*(async\s+)?for\b|\bnext\(")
# Torch's own loading code, by the last two parts of a sampled file's path.
_TORCH_LOADING = re.compile(
    r"\((_utils/(collate|fetch|worker|pin_memory)|data/(dataset|sampler|dataloader))\.py\)$"
)


def dataset_place(loader: Loader) -> Place | None:
    """The dataset's code if it is the user's, else the line that creates the loader."""
    mine = loader.dataset_at is not None and is_user_file(loader.dataset_at.file)
    return loader.dataset_at if mine else loader.created_at


def collate_place(loader: Loader) -> Place | None:
    """The collate function if it is the user's; else the line that creates the loader and names
    it."""
    mine = loader.collate_at is not None and is_user_file(loader.collate_at.file)
    return loader.collate_at if mine else loader.created_at


def fetch_place(fed: Feed, lines: Sequence[StackLine]) -> Place | None:
    """Where fetching spends most of its time: the first sampled line, else the dataset."""
    return lines[0].at if lines else dataset_place(fed.loader)


def top_fetch_lines(loader: Loader, stacks: Stacks | None) -> list[StackLine]:
    """The first of :func:`fetch_lines`, for a report."""
    return fetch_lines(loader, stacks)[:3]


def fetch_lines(loader: Loader, stacks: Stacks | None) -> list[StackLine]:
    """The user's lines that fetching spends its time on, as shares of the fetch time, largest
    first.

    Samples of workers are shares of fetching; in the training process, samples during the data
    wait are taken as shares of that wait. If the user's innermost line only takes batches, a
    library's dataset does the work: the line that creates the loader represents it, and torch's own
    indexing and collating is left out.
    """
    if stacks is None:
        return []
    if loader.num_workers:
        shares = list(stacks.workers)
    else:
        mine = [line for line in stacks.training if line.phase == "data_wait"]
        total = sum(line.self_frac for line in mine)
        shares = [replace(line, self_frac=line.self_frac / total) for line in mine if total]
    lines = [_of_dataset(line, loader, stacks) for line in shares]
    return sorted((x for x in lines if x is not None), key=lambda x: -x.self_frac)


def main_line(fed: Feed | None, stacks: Stacks) -> StackLine | None:
    """The line that certainly takes most of the fetch's work; None if a library's dataset does the
    work, or storage, or the handover of data in memory."""
    lines = _working(fed, stacks)
    return lines[0] if fed and lines and _most(lines[:1], fed, stacks) else None


def main_function(fed: Feed | None, stacks: Stacks) -> list[StackLine]:
    """The lines, largest first, of the function that certainly takes most of the fetch's work, if
    no single line of it does."""
    largest = largest_function(_working(fed, stacks))
    if fed is None or main_line(fed, stacks) or not _most(largest, fed, stacks):
        return []
    return largest


def whole_function(line: StackLine, fed: Feed, stacks: Stacks) -> list[StackLine]:
    """All lines of the line's function, if the dataset or its collate function calls that for some
    part of the work; else the line alone."""
    entries = [x for x in (fed.loader.dataset_at, fed.loader.collate_at) if x]
    name = function_of(line)
    if name.rpartition(".")[2].startswith("__") or any(same_function(line.at, x) for x in entries):
        return [line]
    lines = _working(fed, stacks)
    return [x for x in lines if (x.at.file, function_of(x)) == (line.at.file, name)]


def spread_work(fed: Feed | None, stacks: Stacks) -> list[StackLine]:
    """The lines of the user's functions that together certainly take most of the fetch's work,
    those of the largest function first, if no single line or function does."""
    lines = _working(fed, stacks)
    alone = main_line(fed, stacks) or main_function(fed, stacks)
    if fed is None or alone or not _most(lines, fed, stacks):
        return []
    largest = largest_function(lines)
    return [*largest, *(line for line in lines if line not in largest)]


def largest_function(lines: Sequence[StackLine]) -> list[StackLine]:
    """The lines of the function with most samples, in their order. A comprehension belongs to its
    function, if its frame's name shows it."""
    functions: dict[tuple[str, str], list[StackLine]] = defaultdict(list)
    for line in lines:
        functions[line.at.file, function_of(line)].append(line)
    return max(functions.values(), key=share_of, default=[])


def function_of(line: StackLine) -> str:
    return _INNER.sub("", line.at.function)


def by_hand_ns(
    budget: Budget,
    phases: Phases | None,
    environment: Environment | None,
    loaders: Loaders | None,
) -> float:
    """Time between steps in which the loop makes its batches without a DataLoader, ns per step; 0
    with a DataLoader. On a device: its idle time during that time, from the trace; 0 without a
    trace, because the host may then be waiting for the device."""
    if phases is None or environment is None or budget.blind:
        return 0.0
    if environment.device != "cpu" and not budget.has_device:
        return 0.0
    loaded = "data_wait" in phases.wall_ns or (loaders is not None and loaders.train())
    return 0.0 if loaded else held(budget, "prepare")


def expensive_fetch(
    fed: Feed,
    work: Sequence[StackLine],
    stacks: Stacks,
    part: str,
    kind: str,
    around: Sequence[StackLine] = (),
) -> Found:
    """The finding for lines that take most of the fetch. ``part``: their place in words;
    ``kind``: ``line`` or ``function``; ``around``: what may go with them, if more than they."""
    top, share, seen = work[0], share_of(work), fetch_samples(fed, stacks)
    least, _ = known_to(share, seen)
    more = len(around) > len(work)
    _, most = known_to(share_of(around) if more else share, seen)
    leaf = f" ({top.leaf})" if top.leaf else ""
    return Found(
        summary=(
            f"{percent(fed.wait / fed.step)} of the step waits for data, and {percent(share)} of"
            f" the fetch is {part} in {top.leaf or top.at.function}"
            f" ({duration(share * fed.wall)} per step)."
        ),
        evidence=(
            *map(fetch_measure, work[:3]),
            count("samples of fetches", seen, "sample"),
            *fed.measures(),
        ),
        fix=Fix(
            f"Make the work{where(top.at)}{leaf} cheaper: cache its result if it never changes,"
            " shrink its inputs, or do it on whole batches. Then raise num_workers.",
            "manual",
            action=f"Make the {kind} that takes most of the fetch cheaper",
        ),
        gain=Gain(
            fed.gain_of_saving(fed.wall * least * LOW_END_FRAC),
            fed.gain_of_saving(fed.wall * most),
            f"high end: the {'function around it' if more else kind} is gone; low end: it costs"
            " half."
            f" {sampling_range(seen, least, most)}.",
            DATA_WAIT,
            fetches=True,
        ),
        at=top.at,
    )


def _working(fed: Feed | None, stacks: Stacks) -> list[StackLine]:
    if fed is None or fed.blocked_mostly or fed.from_memory:
        return []
    lines = fetch_lines(fed.loader, stacks)
    return lines if lines and lines[0].at != fed.loader.created_at else []


def _most(lines: Sequence[StackLine], fed: Feed, stacks: Stacks) -> bool:
    return known_to(share_of(lines), fetch_samples(fed, stacks))[0] > MAJORITY_FRAC


def share_of(lines: Sequence[StackLine]) -> float:
    return sum(line.self_frac for line in lines)


def fetch_measure(line: StackLine) -> Measure:
    leaf = f" in {line.leaf}" if line.leaf else ""
    return frac(f"{FETCH_SAMPLES}{where(line.at)}{leaf}", line.self_frac, "sample")


def fetch_samples(fed: Feed, stacks: Stacks) -> int:
    """The number of samples that the shares refer to."""
    if fed.loader.num_workers:
        return stacks.worker_samples
    waiting = sum(line.self_frac for line in stacks.training if line.phase == "data_wait")
    return round(waiting * stacks.samples)


def _of_dataset(line: StackLine, loader: Loader, stacks: Stacks) -> StackLine | None:
    others = [x.at for x in stacks.training if x.phase != "data_wait"]
    if not takes_batches(line.at, loader, others, line.leaf):
        return line
    if _TORCH_LOADING.search(line.leaf):
        return None
    return replace(line, at=loader.created_at or Place(file="", line=0))


def takes_batches(
    at: Place, loader: Loader | None, training: Sequence[Place], leaf: str = ""
) -> bool:
    """Whether the line asks the loader for batches: its function also has one of the ``training``
    lines, or its text is a loop or ``next()``. A loop that is itself the innermost frame (``leaf``)
    asks nobody: it goes over a file or a list."""
    dataset = loader.dataset_at if loader else None
    if dataset is not None and same_function(at, dataset):
        return False
    if at.function and any(same_function(at, other) for other in training):
        return True
    if leaf and leaf.partition(" (")[0] == at.function:
        return False
    return bool(_TAKES_BATCHES.search(linecache.getline(*at.spot)))
