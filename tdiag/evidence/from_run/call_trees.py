"""Sampled stacks as call trees, for a flame graph."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from tdiag.evidence.from_run.stacks import SampledFrame, Samples, Stack
from tdiag.evidence.history import CallTrees, Frame
from tdiag.probe.wire import is_user_file

_Function: TypeAlias = tuple[str, str, int]  # name, file, line
_Key: TypeAlias = tuple[int, _Function]  # its caller's number, and it


def make_call_trees(samples: Samples) -> CallTrees:
    """The training thread from the user's outermost frame on, its workers from the fetch on.

    What lies above these is the interpreter starting up. tdiag's own frames are left out.
    """
    return CallTrees(
        training=_tree([(_from_user(frames), weight) for frames, weight in samples.training]),
        workers=_tree([(_from_fetch(frames), weight) for frames, weight in samples.fetching]),
    )


def _from_user(frames: Sequence[SampledFrame]) -> Sequence[SampledFrame]:
    """Unchanged where no frame is the user's (a library's own thread trains)."""
    first = next((i for i, frame in enumerate(frames) if is_user_file(frame.file or "")), 0)
    return frames[first:]


def _from_fetch(frames: Sequence[SampledFrame]) -> Sequence[SampledFrame]:
    return frames[next(i for i, frame in enumerate(frames) if frame.fetches()) :]


def _tree(stacks: Sequence[Stack]) -> tuple[Frame, ...]:
    total = sum(weight for _, weight in stacks)
    if not total:
        return ()
    numbers: dict[_Key, int] = {}
    weights: list[float] = []
    told: dict[int, _Function | None] = {}  # by identity: the stacks share their frames
    for frames, weight in stacks:
        parent = -1
        for frame in frames:
            if id(frame) not in told:
                told[id(frame)] = _function(frame)
            function = told[id(frame)]
            if function is None:
                continue
            parent = numbers.setdefault((parent, function), len(numbers))
            if parent == len(weights):
                weights.append(0.0)
            weights[parent] += weight
    return tuple(
        Frame(
            name=name,
            file=file,
            line=line,
            parent=parent,
            frac=weights[number] / total,
            user=is_user_file(file),
        )
        for (parent, (name, file, line)), number in numbers.items()
    )


def _function(frame: SampledFrame) -> _Function | None:
    """Name, file and line; None for tdiag's own. A library's lines are all one: they tell its
    reader little and would split every function."""
    file = frame.file or ""
    if frame.ours():
        return None
    return frame.name, file, (frame.line or 0) if is_user_file(file) else 0
