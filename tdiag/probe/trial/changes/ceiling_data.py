"""The same few batches are repeated, so that nothing is loaded."""

import functools
from typing import Any

from ...patches import hidden
from ..change import CEILING, TRAINING, Change, Trial, switch

NAME = "ceiling.data"
KEEP = 4  # batches; heuristic: enough that the CPU's caches do not hold them all


def install(trial: Trial, value: bool) -> None:
    from torch.utils.data import DataLoader
    from torch.utils.data import dataloader as module

    from ...boundary import BATCH

    base, get = module._BaseDataLoaderIter, DataLoader._get_iterator
    following, reset = base.__next__, base._reset
    batches: dict[int, tuple[Any, list[Any]]] = {}  # per loader, by its index sampler

    def kept_of(owner: Any) -> list[Any]:
        sampler = owner._index_sampler  # kept alive, so that no other object gets its id()
        return batches.setdefault(id(sampler), (sampler, []))[1]

    class Again(base):  # type: ignore[misc, valid-type]
        """An epoch of kept batches; starts no workers."""

        def __init__(self, loader: Any) -> None:
            self._index_sampler, self._num_workers = loader._index_sampler, 0
            self._num_yielded = 0

        def __del__(self) -> None:
            pass

    @functools.wraps(get)
    def get_iterator(self: Any) -> Any:
        return Again(self) if len(kept_of(self)) >= KEEP else get(self)

    @functools.wraps(following)
    def next_batch(self: Any) -> Any:
        kept = kept_of(self)
        if len(kept) < KEEP:
            batch = following(self)
            kept.append(batch)
            return batch
        if self._num_yielded >= _length(self._index_sampler):
            raise StopIteration
        self._num_yielded += 1
        trial.boundary.batches += 1
        if trial.boundary.rank <= BATCH:
            trial.boundary.batch()
        trial.answer(NAME)
        trial.applied(NAME, f"{KEEP} batches, repeated")
        return kept[self._num_yielded % KEEP]

    @functools.wraps(reset)
    def reset_to_start(self: Any, *args: Any, **kwargs: Any) -> None:
        if len(kept_of(self)) >= KEEP:
            self._num_yielded = 0
        else:
            reset(self, *args, **kwargs)

    trial.patches.set(DataLoader, "_get_iterator", hidden(get_iterator))
    trial.patches.set(base, "__next__", hidden(next_batch))
    multi = module._MultiProcessingDataLoaderIter
    trial.patches.set(multi, "_reset", hidden(_replayed(multi._reset, kept_of)))
    trial.patches.set(base, "_reset", hidden(reset_to_start))
    trial.waits[NAME] = lambda: any(len(kept) >= KEEP for _, kept in batches.values())


def _replayed(original: Any, kept_of: Any) -> Any:
    """Persistent workers are not asked for another epoch."""

    @functools.wraps(original)
    def reset(self: Any, loader: Any, first_iter: bool = False) -> None:
        if first_iter or len(kept_of(self)) < KEEP:
            original(self, loader, first_iter)
        else:
            self._num_yielded = 0

    return reset


def _length(sampler: Any) -> float:
    try:
        return len(sampler)
    except TypeError:  # an IterableDataset: no epoch ends
        return float("inf")


CHANGE = Change(
    name=NAME,
    does="The same few batches are repeated, so that nothing is loaded.",
    safety=TRAINING,
    kind=CEILING,
    parse=switch,
    absent="no DataLoader was read",
    limits="batches made in the loop itself are still made; an IterableDataset's epoch has no end",
    install=install,
)
