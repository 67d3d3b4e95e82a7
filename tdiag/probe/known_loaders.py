"""Which DataLoader is which. One that is made again for each epoch keeps its number."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

from . import places
from .core import now_ns
from .fetches import describe_loader

if TYPE_CHECKING:
    from .core import Probe


class KnownLoaders:
    """One per process; forked workers inherit it."""

    def __init__(self, probe: Probe) -> None:
        self.probe = probe
        self.numbers: Any = weakref.WeakKeyDictionary()  # DataLoader → number
        # DataLoader → where and when it was made.
        self.origins: Any = weakref.WeakKeyDictionary()
        # Number → what it is, and the DataLoader that has or last had it.
        self.described: dict[int, tuple[dict[str, Any], weakref.ref[Any]]] = {}
        self.by_dataset: dict[int, int] = {}  # id(dataset) → loader number, for its fetchers
        self.passes: dict[int, int] = {}  # loader number → iterators made
        # Loader number → when its last iterator was made, or when it got its number, ns.
        self.began: dict[int, int] = {}

    def made(self, loader: Any) -> None:
        """Note where it was made. A library may make it again from one of the user's, for several
        ranks or devices: then where that was made."""
        place, library = places.caller_and_callee()
        if library is not None:
            same = (at for x, (at, _) in self.origins.items() if x.dataset is loader.dataset)
            place = next(same, place)
        self.origins[loader] = place, now_ns()

    def begin_pass(self, loader: Any) -> int:
        """An iterator is about to be made. Returns the loader's number."""
        number = self.number(loader)
        self.passes[number] = self.passes.get(number, 0) + 1  # forked workers know it, too
        self.began[number] = now_ns()
        return number

    def take_over(self, before: KnownLoaders) -> None:
        """Share the numbers of an earlier watch, which its iterators carry."""
        self.numbers, self.origins = before.numbers, before.origins
        self.described, self.by_dataset = before.described, before.by_dataset
        self.began = before.began
        for number, (about, _) in self.described.items():
            self.probe.recorder.write("loader", id=number, **about)

    def number(self, loader: Any) -> int:
        """This loader's number; the first time, also write its record. A loader that is made again
        for each epoch gets the number of the previous one. Its length may differ (a curriculum);
        the same line may also make a loader for evaluation, so that of the nearest length is
        taken."""
        number = self.numbers.get(loader)
        if number is None:
            about = describe_loader(loader, self.origins.get(loader, (None, 0))[0])
            number = min(
                (
                    n
                    for n, (was, _) in self.described.items()
                    if _like(was, about) and self._over(n, loader)
                ),
                key=lambda n: abs(_length(self.described[n][0]) - _length(about)),
                default=len(self.described),
            )
            if number == len(self.described):
                self.probe.recorder.write("loader", id=number, **about)
            self.described[number] = about, weakref.ref(loader)
            self.numbers[loader] = number
            self.by_dataset[id(loader.dataset)] = number
            self.began[number] = now_ns()  # between windows no pass is noted
        return int(number)

    def _over(self, number: int, loader: Any) -> bool:
        """Whether the loader with this number is gone, or is only kept (by Accelerate) after its
        pass over the data that this one, made since, reads."""
        last = self.described[number][1]()
        if last is None:
            return True
        made = self.origins.get(loader, (None, 0))[1]
        return last.dataset is loader.dataset and made > self.began[number]


def _like(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Whether two descriptions of loaders are equal but for their lengths."""
    lengths = ("dataset_len", "sampler_len", "containers")
    return all(one[key] == other[key] for key in one if key not in lengths)


def _length(about: dict[str, Any]) -> int:
    return about["sampler_len"] or 0
