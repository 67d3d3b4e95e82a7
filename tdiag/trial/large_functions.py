"""The user's functions with the most samples: freezing one measures what it costs, without a rule
for what it does."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from tdiag.evidence.from_run.sampled_frames import SampledFrame
from tdiag.evidence.sampled import CallFrame, CallTrees
from tdiag.model.place import Place
from tdiag.model.threshold import NOTICEABLE_FRAC, Threshold
from tdiag.trial.candidate import FREEZE, Candidate, function_at

MOST_FUNCTIONS = Threshold(
    5,
    "functions",
    "Heuristic: each takes some 20 s of trials, and the sixth largest is seldom worth changing.",
)
SAME_FRAC = Threshold(
    0.9, "of its caller's samples", "Heuristic: freezing it measures nearly the same time again."
)
TRAINS = ("backward", "optimizer")
MODEL = "torch/nn/modules/module.py"  # below a function that calls a model


def large_functions(trees: CallTrees, cwd: Path) -> list[Candidate]:
    """Trials that freeze the user's largest functions, by samples in them and in what they call,
    largest first. Left out: functions that train or are a model's forward, which cannot be frozen,
    and one that has nearly all samples of its caller, unless the caller calls a model: then its
    result may carry gradients, which only the trial can tell.

    ``cwd``: of the run; files below it are named relative to it."""
    found = [*_of_tree(trees.training, cwd), *_of_tree(trees.workers, cwd)]
    chosen = sorted(found, key=lambda one: -one[0])[: int(MOST_FUNCTIONS)]
    return [Candidate(((FREEZE, name),)) for _, name in chosen]


def _of_tree(tree: Sequence[CallFrame], cwd: Path) -> Iterator[tuple[float, str]]:
    """Share and ``FILE.py:FUNCTION`` of each function that may be frozen."""
    functions = [_named(frame, cwd) for frame in tree]
    trains = _callers(tree, lambda frame: _phase(frame) in TRAINS)
    calls_model = {functions[i] for i in _callers(tree, lambda frame: MODEL in frame.file)}
    shares: Counter[str] = Counter()
    never: set[str] = set()
    within: defaultdict[str, Counter[str]] = defaultdict(Counter)  # its samples, by caller
    for number, (frame, function) in enumerate(zip(tree, functions, strict=True)):
        if number in trains:
            never.add(function)
        callers = {functions[i] for i in _above(tree, number)}
        if function and function not in callers:  # not a recursive call
            shares[function] += frame.frac  # type: ignore[assignment]
            for caller in callers - {""}:
                within[function][caller] += frame.frac  # type: ignore[assignment]
    for function, share in shares.items():
        again = any(
            caller not in never | calls_model and part >= SAME_FRAC * max(share, shares[caller])
            for caller, part in within[function].items()
        )
        if share >= NOTICEABLE_FRAC and function not in never and not again:
            yield share, function


def _named(frame: CallFrame, cwd: Path) -> str:
    """ "" for a library's function, code outside functions, and a model's forward."""
    if not frame.user or frame.name.endswith("forward"):
        return ""
    return function_at(Place(frame.file, frame.line), cwd)


def _callers(tree: Sequence[CallFrame], wanted: Callable[[CallFrame], bool]) -> set[int]:
    """The frames that call a wanted one, directly or through others."""
    return {i for n, frame in enumerate(tree) if wanted(frame) for i in _above(tree, n)}


def _phase(frame: CallFrame) -> str:
    return SampledFrame(frame.name, frame.file).phase()


def _above(tree: Sequence[CallFrame], number: int) -> Iterator[int]:
    while (number := tree[number].parent) >= 0:
        yield number
