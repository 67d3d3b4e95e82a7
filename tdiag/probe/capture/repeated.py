"""Calls with the same weights, or on the same input, before one backward: which of them could be
one, and the user's line that repeats them.

Of every tensor it is known which weights it comes from. A call whose input does not come from its
own weight begins a *series*: one of the samples of a batch that are computed one by one, one of the
trajectories that are integrated one by one. The steps of a recurrence are one series. Once a value
that comes from weights was read, a tensor never seen before may come from it: an environment's next
state. Then it is unknown how many series there are.
"""

from __future__ import annotations

import weakref
from collections import Counter
from types import FrameType
from typing import Any, TypeVar

import torch

from .. import places
from ..by_tensor import ByTensor
from .frozen_weights import BRANCHES, changes, flat, tensors_in

IN_DOUBT = 1  # the first bit in sets of weights


class Repeats:
    """Calls that a loop of the user's may repeat."""

    def __init__(self) -> None:
        self.calls = 0
        self.places: Counter[tuple[Any, ...]] = Counter()
        self.frames: list[FrameType] = []  # of the last call, so that no other gets their addresses

    @property
    def at(self) -> list[Any] | None:
        """The line that repeats most of them; None if unknown, as for the first two."""
        return list(self.places.most_common(1)[0][0]) if self.places else None

    def add(self, frames: list[FrameType]) -> None:
        """A call made below these frames of the user's, innermost first. The innermost one that
        also made the call before repeats it. Frames keep their tensors, so those of a first call
        are not kept: most calls are never repeated."""
        self.calls += 1
        before = {id(frame) for frame in self.frames}
        shared = next((frame for frame in frames if id(frame) in before), None)
        if shared is not None:
            self.places[tuple(places.place_of(shared))] += 1
        if self.calls > 1:
            self.frames = frames


class OfWeight:
    """The calls with one weight. ``bit``: its own in sets of weights. ``recorded``: those that
    record gradients; ``one_row``: the last one got one sample. ``begun``: those that need no
    earlier one's result, ``recorded_begun``: of these, those that record gradients; ``doubt``:
    whether others may not need it either."""

    def __init__(self, bit: int) -> None:
        self.bit = bit
        self.calls, self.begun = Repeats(), Repeats()
        self.recorded, self.recorded_begun = 0, 0
        self.one_row, self.doubt = True, False

    @property
    def size(self) -> int:
        return self.calls.calls

    @property
    def at(self) -> list[Any] | None:
        """The line that begins the series, else the one that makes most calls."""
        return (None if self.doubt else self.begun.at) or self.calls.at

    @property
    def series(self) -> int:
        """0 = unknown. An evaluation before the same backward has series of its own."""
        if self.doubt:
            return 0
        return self.recorded_begun if self.recorded else self.begun.calls

    def forget(self) -> None:
        self.calls.frames = self.begun.frames = []


class OfInput:
    """Calls that take one input. ``tensors``: their weights, with their biases."""

    def __init__(self, given: Any) -> None:
        self.given = weakref.ref(given)
        self.weights: set[int] = set()
        self.tensors: set[int] = set()
        self.calls = Repeats()

    @property
    def size(self) -> int:
        return len(self.weights)

    @property
    def series(self) -> int:
        """Calls on one input need nothing of each other."""
        return self.size

    def forget(self) -> None:
        self.calls.frames = []


Either = TypeVar("Either", OfWeight, OfInput)


def more(one: Either | None, other: Either | None) -> Either | None:
    """The larger one; of two that a loop calls as often, the one that it cannot call at once."""
    if one is None or other is None:
        return one or other
    return max(one, other, key=lambda x: (x.size, -x.series))


class RepeatedCalls:
    """Since the last batch or backward. ``tensors``: the weights that each comes from, as the bits
    of a number."""

    def __init__(self) -> None:
        self.weights: dict[int, OfWeight] = {}
        self.inputs: dict[tuple[Any, ...], OfInput] = {}
        self.tensors: ByTensor[int] = ByTensor()
        self.read = False  # a value that comes from weights

    def forget(self) -> None:
        """Let the frames go; the lines keep the counts."""
        for weight in self.weights.values():
            weight.forget()
        for given in self.inputs.values():
            given.forget()

    def seen(
        self, line: int, function: Any, name: str, args: Any, kwargs: Any, result: Any
    ) -> tuple[OfWeight, OfInput | None] | None:  # fmt: skip
        """A call of this line, known by a number, in this function returned. If it has a weight:
        the calls so far with it, and those on the same input if it records gradients."""
        given = list(tensors_in(args, kwargs))
        sources = 0 if given or not self.read else IN_DOUBT
        for value in given:
            sources |= self._sources(value)
        self.read = self.read or (name in BRANCHES and sources > 0)
        taken = [v for v in tensors_in(args[1:], kwargs) if isinstance(v, torch.nn.Parameter)]
        weight = next((v for v in taken if v.dim() > 1 and v.requires_grad), None)
        found = None
        if weight is not None:
            first = args[0] if args else kwargs.get("input")
            frames = places.user_frames()
            calls = self._weight(weight, sources, first, frames)
            sources |= calls.bit
            recorded = torch.is_grad_enabled() and isinstance(first, torch.Tensor)
            shared = None
            if recorded:
                shared = self._input(line, function, first, weight, taken, frames)
            found = calls, shared
        made = [value for value in flat((result,)) if isinstance(value, torch.Tensor)]
        for value in (*made, *(given[:1] if changes(name) else ())):
            self.tensors.keep(value, sources)
        return found

    def _sources(self, tensor: Any) -> int:
        if isinstance(tensor, torch.nn.Parameter):
            return 0
        known = self.tensors.get(tensor)
        if known is not None:
            return known
        sources = IN_DOUBT if self.read else 0
        self.tensors.keep(tensor, sources)
        return sources

    def _weight(self, weight: Any, sources: int, given: Any, frames: list[FrameType]) -> OfWeight:
        known = self.weights.get(id(weight))
        if known is None:
            known = self.weights[id(weight)] = OfWeight(IN_DOUBT << (1 + len(self.weights)))
        known.calls.add(frames)
        if not sources & known.bit:
            known.begun.add(frames)
            known.recorded_begun += torch.is_grad_enabled()
            known.doubt = known.doubt or bool(sources & IN_DOUBT)
        if torch.is_grad_enabled():
            known.recorded += 1
        known.one_row = _one_row(given)
        return known

    def _input(
        self, line: int, function: Any, given: Any, weight: Any, taken: list[Any],
        frames: list[FrameType],
    ) -> OfInput | None:  # fmt: skip
        """The larger of: the calls in the function on this very tensor, with weights that one could
        hold (the gates of a cell); and those at the line on slices of one tensor, of one shape
        (each layer takes its own)."""
        whole = given._base if given._is_view() and given._base is not None else given
        found = None
        for where, tensor in (((function, weight.shape[1:]), given), (line, whole)):
            key = where, id(tensor), given.shape
            known = self.inputs.get(key)
            if known is None or known.given() is not tensor:
                known = self.inputs[key] = OfInput(tensor)
            known.weights.add(id(weight))
            known.tensors.update(map(id, taken))
            known.calls.add(frames)
            found = more(found, known)
        return found


def _one_row(given: Any) -> bool:
    """Whether it is a batch of one, or a sample without a batch. A vector of integers is a batch of
    indices."""
    if not isinstance(given, torch.Tensor) or not given.dim():
        return True
    return given.shape[0] == 1 or (given.dim() == 1 and given.is_floating_point())
