"""Which of the user's lines call which, by the sampled stacks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Sequence

from tdiag.evidence.sampled import CallFrame, CallTrees
from tdiag.model.place import Place, Spot
from tdiag.model.threshold import NOTICEABLE_FRAC
from tdiag.rules.base import same_function
from tdiag.rules.hooks import MODULE_FILE


def lines_below(
    spots: Collection[Spot], trees: CallTrees | None, workers: bool = False
) -> set[Spot]:
    """The user's lines that were sampled below these lines; ``workers``: in what workers do while
    they fetch."""
    frames = () if trees is None else trees.workers if workers else trees.training
    return {
        (frame.file, frame.line)
        for frame, (_, above) in zip(frames, _within(frames, _at(spots)), strict=True)
        if above and frame.user
    }


def _at(spots: Collection[Spot]) -> Callable[[CallFrame], bool]:
    return lambda frame: (frame.file, frame.line) in spots


def _within(
    frames: Sequence[CallFrame], chosen: Callable[[CallFrame], bool]
) -> Iterator[tuple[bool, bool]]:
    """For each frame, whether it is a chosen one, and whether it is below one."""
    inside: list[bool] = []  # a frame's caller comes before it
    for frame in frames:
        here, above = chosen(frame), frame.parent >= 0 and inside[frame.parent]
        inside.append(above or here)
        yield here, above


def module_called_at(spots: Collection[Spot], trees: CallTrees | None) -> Place | None:
    """The user's line, outside of all modules, that calls the module in which most samples of these
    lines are; None without one."""
    frames = trees.training if trees else ()
    shares: dict[Place, float] = defaultdict(float)
    for number, frame in enumerate(frames):
        if (frame.file, frame.line) not in spots:
            continue
        outermost = _callers(number, frames)
        calls = (n for n, x in enumerate(outermost) if frames[x].file.endswith(MODULE_FILE))
        users = [frames[x] for x in outermost[: next(calls, 0)] if frames[x].user]
        if users:
            shares[_place(users[-1])] += frame.frac
    return max(shares, key=lambda at: shares[at], default=None)


def _place(frame: CallFrame) -> Place:
    return Place(file=frame.file, line=frame.line, function=frame.name)


def _callers(number: int, frames: Sequence[CallFrame]) -> list[int]:
    """The frame and its callers, outermost first."""
    found = [number]
    while frames[found[-1]].parent >= 0:
        found.append(frames[found[-1]].parent)
    return found[::-1]


def functions_above(spots: Collection[Spot], trees: CallTrees | None) -> set[tuple[str, str]]:
    """The user's functions, each its file and its name without its class, that were sampled above
    these lines; not the lines' own."""
    frames = trees.training if trees else ()
    found = set()
    for number, frame in enumerate(frames):
        if (frame.file, frame.line) in spots:
            above = (frames[x] for x in _callers(number, frames)[:-1])
            found |= {(x.file, x.name.rpartition(".")[2]) for x in above if x.user}
    return found


def caller_of(place: Place, trees: CallTrees | None) -> Place | None:
    """The user's line that most often calls the function of this place, by the samples."""
    return _caller_of(lambda frame: same_function(_place(frame), place), trees)


def busiest_beside(place: Place, trees: CallTrees | None) -> Place | None:
    """The line of this place's function through which most samples go; None without one."""
    shares: dict[Place, float] = defaultdict(float)
    for frame in trees.training if trees else ():
        if frame.user and same_function(_place(frame), place):
            shares[_place(frame)] += frame.frac
    return max(shares, key=lambda at: shares[at], default=None)


def caller_of_line(place: Place, trees: CallTrees | None) -> Place | None:
    """The same for what runs at this line: of several classes' methods of one name, this one's."""
    return _caller_of(_at({place.spot}), trees)


def _caller_of(chosen: Callable[[CallFrame], bool], trees: CallTrees | None) -> Place | None:
    frames = trees.training if trees else ()
    shares: dict[Place, float] = defaultdict(float)
    for number, frame in enumerate(frames):
        if frame.user and chosen(frame):
            users = [frames[x] for x in _callers(number, frames)[:-1] if frames[x].user]
            # A comprehension is called by the function itself.
            if users and not chosen(users[-1]):
                shares[_place(users[-1])] += frame.frac
    return max(shares, key=lambda at: shares[at], default=None)


def lines_that_reach(
    chosen: Callable[[CallFrame], bool], trees: CallTrees | None
) -> dict[Place, float]:
    """Share of the training thread's samples in these functions of libraries and what they call, by
    the innermost user's line above."""
    frames = trees.training if trees else ()
    found: dict[Place, float] = defaultdict(float)
    for number, (here, above) in enumerate(_within(frames, chosen)):
        if here and not above:
            users = [frames[x] for x in _callers(number, frames) if frames[x].user]
            if users:
                found[_place(users[-1])] += frames[number].frac
    return found


def common_caller(spots: Collection[Spot], trees: CallTrees | None) -> Place | None:
    """The innermost user's line above these lines through which nearly all of their samples come;
    None without one."""
    frames = trees.training if trees else ()
    shares: dict[Spot, float] = defaultdict(float)
    places: dict[Spot, tuple[int, Place]] = {}
    whole = 0.0
    for number, frame in enumerate(frames):
        if (frame.file, frame.line) not in spots:
            continue
        *above, _ = _callers(number, frames)
        if any((frames[x].file, frames[x].line) in spots for x in above):
            continue  # counted at its caller
        whole += frame.frac
        callers = {}
        for depth, x in enumerate(above):
            if frames[x].user:
                callers[frames[x].file, frames[x].line] = depth, _place(frames[x])
        for spot, found in callers.items():
            shares[spot] += frame.frac
            places[spot] = max(found, places.get(spot, found), key=lambda x: x[0])
    most = (1 - NOTICEABLE_FRAC) * whole
    known = [places[spot] for spot, share in shares.items() if share >= most]
    return max(known, key=lambda x: x[0])[1] if known else None


def inclusive(at: Place | None, trees: CallTrees | None) -> float:
    """Share of the training thread's samples in this line and what it calls; 0 if unknown."""
    return inclusive_of_lines({at.spot}, trees) if at else 0.0


def inclusive_of_lines(
    spots: Collection[Spot], trees: CallTrees | None, workers: bool = False
) -> float:
    """The same for all of these lines together; ``workers``: of what workers do while they
    fetch."""
    return frac_of_frames(_at(spots), trees, workers)


def inclusive_of(functions: Collection[tuple[str, str]], trees: CallTrees | None) -> float:
    """The same for these functions, each its file and its name without its class."""
    return frac_of_frames(lambda x: (x.file, x.name.rpartition(".")[2]) in functions, trees)


def frac_of_frames(
    chosen: Callable[[CallFrame], bool], trees: CallTrees | None, workers: bool = False
) -> float:
    """The same for chosen frames of functions, the user's or a library's."""
    frames = () if trees is None else trees.workers if workers else trees.training
    within = zip(frames, _within(frames, chosen), strict=True)
    return sum(frame.frac for frame, (here, above) in within if here and not above)
