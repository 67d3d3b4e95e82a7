"""Samples stay in memory after their first fetch."""

from typing import Any

from ...patches import hidden
from ..change import TRAINING, Change, Trial, switch

NAME = "loader.cache"
MEMORY_FRAC = 0.25  # of the memory free at the start; heuristic: both sides and the page cache fit
SETTLED_HITS = 64  # consecutive cache hits: the first epoch is over


class Cached:
    """The dataset as the fetcher sees it."""

    def __init__(self, trial: Trial, dataset: Any, kept: dict[Any, Any]) -> None:
        self.dataset, self.trial, self.kept = dataset, trial, kept

    def __getattr__(self, name: str) -> Any:
        return getattr(self.dataset, name)

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: Any) -> Any:
        if index in self.kept:
            self.trial.shared["hits"] += 1
            return self.kept[index]
        self.trial.shared["hits"] = 0
        return self.keep(index, self.dataset[index])

    def __getitems__(self, indices: Any) -> Any:
        many = getattr(self.dataset, "__getitems__", None)
        missing = [index for index in indices if index not in self.kept]
        if many is None or not missing:
            return [self[index] for index in indices]
        self.trial.shared["hits"] = 0
        fresh = dict(zip(missing, many(missing)))
        return [
            self.kept[index] if index in self.kept else self.keep(index, fresh[index])
            for index in indices
        ]

    def keep(self, index: Any, sample: Any) -> Any:
        from ... import fetches  # imports torch, which `tdiag try --list` does not need

        size = fetches.count_bytes(sample)[0] or 0
        if self.trial.shared["room"] >= size:
            self.trial.shared["room"] -= size
            self.kept[index] = sample
        elif not self.trial.shared["full"]:
            self.trial.shared["full"] = True
            self.trial.refused(NAME, f"only {len(self.kept):,} samples fit into memory")
        return sample


def install(trial: Trial, value: bool) -> None:
    from torch.utils.data import get_worker_info
    from torch.utils.data._utils import fetch

    original = fetch._BaseDatasetFetcher.__init__
    caches: dict[int, tuple[Any, dict[Any, Any]]] = {}
    trial.shared.update(hits=0, room=int(_free_bytes() * MEMORY_FRAC), full=False)

    def init(self: Any, dataset: Any, *args: Any, **kwargs: Any) -> None:
        if hasattr(dataset, "__getitem__") and type(self).__name__ == "_MapDatasetFetcher":
            if get_worker_info() is not None:
                trial.refused(NAME, "the DataLoader has workers, each of which would keep its own"
                              " samples; add loader.num_workers=0")  # fmt: skip
                original(self, dataset, *args, **kwargs)
                return
            # The dataset is kept alive, so that no other object gets its id().
            _, kept = caches.setdefault(id(dataset), (dataset, {}))
            dataset = Cached(trial, dataset, kept)
            trial.applied(NAME, f"samples of {type(dataset.dataset).__name__} are kept")
            trial.waits[NAME] = lambda: bool(trial.shared["hits"] >= SETTLED_HITS)
        original(self, dataset, *args, **kwargs)

    trial.patches.set(fetch._BaseDatasetFetcher, "__init__", hidden(init))


def _free_bytes() -> int:
    with open("/proc/meminfo", encoding="ascii") as file:
        lines = dict(line.split(":", 1) for line in file)
    return int(lines["MemAvailable"].split()[0]) << 10


CHANGE = Change(
    name=NAME,
    does="Samples stay in memory after their first fetch.",
    safety=TRAINING,
    parse=switch,
    absent="no DataLoader over an indexed dataset was read",
    limits="random augmentation is drawn once and then repeated; does not apply to an"
    " IterableDataset, or if workers load the samples",
    edit="keep decoded samples in a list or in a tensor of the dataset",
    install=install,
)
