"""Which of the user's lines make the batches: sampled lines, and the dataset's own."""

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
from tdiag.model.diagnosis import Measure
from tdiag.model.place import Place
from tdiag.model.threshold import MAJORITY_FRAC
from tdiag.probe.wire import is_user_file
from tdiag.rules.base import held, same_function, where
from tdiag.rules.feed import Feed
from tdiag.rules.measures import frac, known_to

FETCH_SAMPLES = "fetch samples"  # begins the name of such a measure
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


def top_fetch_lines(loader: Loader, stacks: Stacks | None, most: int = 3) -> list[StackLine]:
    """The user's lines that fetching spends its time on, as shares of the fetch time.

    Samples of workers are shares of fetching; in the training process, samples during the data
    wait are taken as shares of that wait. If the user's innermost line only takes batches, a
    library's dataset does the work: the line that creates the loader stands for it, and torch's own
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
    return sorted((x for x in lines if x is not None), key=lambda x: -x.self_frac)[:most]


def by_hand_ns(
    budget: Budget,
    phases: Phases | None,
    environment: Environment | None,
    loaders: Loaders | None,
) -> float:
    """Time between steps in which the loop makes its batches without a DataLoader, ns per step; 0
    with one, and on a device, for which that time may be a wait."""
    if phases is None or environment is None or environment.device != "cpu":
        return 0.0
    loaded = "data_wait" in phases.wall_ns or (loaders is not None and loaders.train())
    return 0.0 if loaded else held(budget, "prepare")


def main_function(lines: Sequence[StackLine], seen: int) -> list[StackLine]:
    """Of ``lines``, whose shares are of ``seen`` samples, those of the function that surely holds
    more than half, most samples first; empty if none does. A comprehension is its function's."""
    of: dict[tuple[str, str], list[StackLine]] = defaultdict(list)
    for line in sorted(lines, key=lambda x: -x.self_frac):
        of[line.at.file, function_of(line)].append(line)
    most = max(of.values(), key=lambda x: sum(line.self_frac for line in x), default=[])
    least, _ = known_to(sum(line.self_frac for line in most), seen)
    return most if least > MAJORITY_FRAC else []


def function_of(line: StackLine) -> str:
    """The name of its function; of a comprehension, that around it, where its frame has it."""
    return _INNER.sub("", line.at.function)


def fetch_measure(line: StackLine) -> Measure:
    leaf = f" in {line.leaf}" if line.leaf else ""
    return frac(f"{FETCH_SAMPLES}{where(line.at)}{leaf}", line.self_frac, "sample")


def fetch_samples(fed: Feed, stacks: Stacks) -> int:
    """The number of samples behind those shares."""
    if fed.loader.num_workers:
        return stacks.worker_samples
    waiting = sum(line.self_frac for line in stacks.training if line.phase == "data_wait")
    return round(waiting * stacks.samples)


def _of_dataset(line: StackLine, loader: Loader, stacks: Stacks) -> StackLine | None:
    others = [x.at for x in stacks.training if x.phase != "data_wait"]
    if not takes_batches(line.at, loader, others):
        return line
    if _TORCH_LOADING.search(line.leaf):
        return None
    return replace(line, at=loader.created_at or Place(file="", line=0))


def takes_batches(at: Place, loader: Loader | None, training: Sequence[Place]) -> bool:
    """The line asks the loader for batches: its function also has one of the ``training`` lines,
    or its text is a loop or ``next()``."""
    dataset = loader.dataset_at if loader else None
    if dataset is not None and same_function(at, dataset):
        return False
    if at.function and any(same_function(at, other) for other in training):
        return True
    return bool(_TAKES_BATCHES.search(linecache.getline(at.file, at.line)))
