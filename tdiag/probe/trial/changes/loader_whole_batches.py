"""A dataset is indexed once per batch instead of once per sample."""

import functools
from typing import Any

from ...patches import hidden
from ..change import SAME, Change, Trial, switch

NAME = "loader.whole_batches"
COMPARED = 3  # batches made both ways; heuristic: random draws differ in the first


class Whole:
    """The dataset as the fetcher sees it. ``indices``: of the batch being made; ``compared``:
    batches that were equal both ways; ``reason``: why it is still indexed once per sample."""

    def __init__(self, trial: Trial, dataset: Any) -> None:
        self.trial, self.dataset = trial, dataset
        self.indices: Any = None
        self.compared = 0
        self.reason = ""

    def __getattr__(self, name: str) -> Any:
        return getattr(self.dataset, name)

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: Any) -> Any:
        return self.dataset[index]

    def __getitems__(self, indices: Any) -> Any:
        self.indices = indices
        if self.known():
            return indices
        return [self.dataset[index] for index in indices]

    def known(self) -> bool:
        return self.compared >= COMPARED and not self.reason

    def collate(self, data: Any) -> Any:
        """Called by the fetcher with what ``__getitems__`` returned."""
        from torch.utils.data._utils.collate import default_collate, default_convert

        if self.known():
            return default_convert(self.dataset[data])
        batch = default_collate(data)
        if not self.reason:
            self.trial.probe.guard(self.compare)(batch)
        return batch

    def compare(self, batch: Any) -> None:
        from torch.utils.data._utils.collate import default_convert

        name = type(self.dataset).__name__
        try:
            if not _alike(default_convert(self.dataset[self.indices]), batch):
                self.reason = f"{name} gives other values for a list of indices"
        except Exception as error:
            self.reason = f"{name} takes no list of indices: {type(error).__name__}"
        self.compared += 1
        if self.reason:
            self.trial.refused(NAME, self.reason)
        elif self.known():
            self.trial.applied(NAME, f"{name} is indexed once per batch")


def install(trial: Trial, value: bool) -> None:
    """Like a BatchSampler with batch_size=None, if both ways give the same batches."""
    from torch.utils.data._utils import fetch
    from torch.utils.data._utils.collate import default_collate

    original = fetch._BaseDatasetFetcher.__init__
    known: dict[int, Whole] = {}  # by the dataset's id(); the dataset is kept alive

    @functools.wraps(original)
    def init(self: Any, dataset: Any, auto_collation: bool, collate_fn: Any, *args: Any) -> None:
        name = type(dataset).__name__
        if type(self).__name__ == "_MapDatasetFetcher":
            if not auto_collation or collate_fn is not default_collate:
                trial.refused(NAME, f"{name}'s batches are collated by the script's own code")
            elif getattr(dataset, "__getitems__", None):
                trial.refused(NAME, f"{name} is asked for whole batches already")
            else:
                whole = known.setdefault(id(dataset), Whole(trial, dataset))
                dataset, collate_fn = whole, whole.collate
        original(self, dataset, auto_collation, collate_fn, *args)

    trial.patches.set(fetch._BaseDatasetFetcher, "__init__", hidden(init))
    trial.waits[NAME] = lambda: all(whole.reason or whole.known() for whole in known.values())


def _alike(one: Any, other: Any) -> bool:
    import torch

    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        return one.dtype is other.dtype and torch.equal(one, other)
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_alike(one[k], other[k]) for k in one)
    if isinstance(one, (list, tuple)) and isinstance(other, (list, tuple)):
        return len(one) == len(other) and all(map(_alike, one, other))
    return False


CHANGE = Change(
    name=NAME,
    does="A dataset in memory is indexed once a batch, with a list, instead of once a sample.",
    safety=SAME,
    parse=switch,
    absent="no DataLoader over an indexed dataset was read",
    limits="does not apply if the first batches differ from those made of samples (a dataset that"
    " takes no list or draws at random), or if there is a collate_fn",
    edit="DataLoader(data, sampler=BatchSampler(RandomSampler(data), n, False), batch_size=None)",
    install=install,
)
