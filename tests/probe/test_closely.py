"""What a fetch is asked beside its time: files, random numbers, values."""

import functools
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch

from tdiag.evidence.feeding import Loader, Loaders
from tdiag.probe import fetches

from .harness import watch_code

CODE = """
import sys
import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

class Images(Dataset):
    def __init__(self, random):
        self.random = random
        for i in range(8):
            np.save(f"image{i}.npy", np.full((3, 40, 40), i, np.uint8))
    def __len__(self):
        return 96
    def __getitem__(self, i):
        image = torch.from_numpy(np.load(f"image{i % 8}.npy")).float() / 255
        if self.random:
            image = image.flip(0) if np.random.rand() < 0.5 else image
        label = torch.tensor(i % 10)
        return {"image": image, "extra": [label, torch.tensor(i * 0.3 - 7)]}

torch.manual_seed(0)
workers = int(sys.argv[1])
loader = DataLoader(Images(random=workers > 0), batch_size=4, num_workers=workers)
model = torch.nn.Linear(3 * 1600, 10)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for epoch in range(2):
    for batch in loader:
        optimizer.zero_grad()
        output = model(batch["image"].flatten(1))
        torch.nn.functional.cross_entropy(output, batch["extra"][0]).backward()
        optimizer.step()
"""


IN_MEMORY = """
import torch
from torch.utils.data import DataLoader, TensorDataset

class Mine(TensorDataset):
    def __init__(self):
        super().__init__(torch.randn(512, 4))
        self.name = "kept in memory"

model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for (x,) in DataLoader(Mine(), batch_size=16):
    optimizer.zero_grad()
    model(x).mean().backward()
    optimizer.step()
"""


def test_a_subclass_that_reads_as_torchs_dataset_does_is_called_that(tmp_path: Path) -> None:
    run = watch_code(tmp_path, IN_MEMORY, windows=["baseline"])
    (loader,) = run.of("loader")
    assert (loader["dataset_class"], loader["dataset_at"]) == ("TensorDataset", None)


def test_a_stream_is_read_by_its_own_iter() -> None:
    """torch gives IterableDataset a ``__getitem__`` that only raises."""

    class Mine(torch.utils.data.IterableDataset[int]):
        def __iter__(self) -> Iterator[int]:
            yield 1

    told = fetches.describe_loader(torch.utils.data.DataLoader(Mine()), None)
    assert told["dataset_at"][0] == __file__ and told["dataset_at"][2] == "__iter__"


def test_large_containers_of_python_objects_are_told_by_their_attribute() -> None:
    class Mine(torch.utils.data.Dataset[int]):
        def __init__(self) -> None:
            self.names = {n: str(n) for n in range(100_000)}
            self.pairs = [(n, n) for n in range(200_000)]
            self.few, self.array = [1.0] * 10, torch.zeros(200_000)

        def __getitem__(self, index: int) -> int:
            return index

    told = fetches.describe_loader(torch.utils.data.DataLoader(Mine()), None)
    assert told["containers"] == [
        ["pairs", "list", 200_000, "tuple"],
        ["names", "dict", 100_000, "str"],
    ]


class Collator:
    def __call__(self, samples: list[int]) -> torch.Tensor:
        return torch.tensor(samples)


@pytest.mark.parametrize(
    ("collate", "name", "function"),
    [
        (Collator(), "Collator", "__call__"),
        (functools.partial(Collator.__call__, Collator()), "Collator.__call__", "__call__"),
        (torch.utils.data.default_collate, "default_collate", None),
        (functools.partial(torch.utils.data.default_collate), "default_collate", None),
        (list, "list", None),
    ],
)
def test_a_collator_may_be_an_object_or_a_partial(
    collate: Any, name: str, function: str | None
) -> None:
    """Only torch's own collate function has no place: it alone may be left out."""
    loader = torch.utils.data.DataLoader([1, 2], collate_fn=collate)
    told = fetches.describe_loader(loader, None)
    assert told["collate_name"] == name
    assert (told["collate_at"] and told["collate_at"][2]) == function


def test_a_librarys_collator_around_the_users_is_the_users() -> None:
    """Transformers' RemoveColumnsCollator."""
    code = (
        "class Removes:\n    def __init__(self, inner): self.data_collator = inner\n"
        "    def __call__(self, samples): return self.data_collator(samples)"
    )
    library: dict[str, Any] = {}
    exec(compile(code, "/x/site-packages/transformers/trainer_utils.py", "exec"), library)
    loader = torch.utils.data.DataLoader([1, 2], collate_fn=library["Removes"](Collator()))
    told = fetches.describe_loader(loader, None)
    assert (told["collate_name"], told["collate_at"][2]) == ("Collator", "__call__")


AGAIN = """
import torch
from torch.utils.data import DataLoader, TensorDataset

model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
valid = DataLoader(TensorDataset(torch.randn(16, 4)), batch_size=16)
train = DataLoader(TensorDataset(torch.randn(8, 4)), batch_size=2)
for epoch in range(40):
    if epoch:
        train = DataLoader(TensorDataset(torch.randn(32, 4)), batch_size=8)
    for (x,) in train:
        optimizer.zero_grad()
        model(x).mean().backward()
        optimizer.step()
    with torch.no_grad():
        for (x,) in valid:
            model.eval()(x)
    model.train()
"""


def test_a_loader_made_again_each_epoch_is_one_and_takes_no_other_ones_number(
    tmp_path: Path,
) -> None:
    run = watch_code(tmp_path, AGAIN, windows=["baseline"])
    assert [loader["id"] for loader in run.of("loader")] == [0, 1, 2]
    loaders = run.evidence().get(Loaders)
    assert loaders
    assert {(x.created_at.line, x.role, x.made) for x in loaders.loaders if x.created_at} == {
        (7, "eval", 1), (8, "train", 1), (11, "train", 39),
    }  # fmt: skip


GROWS = """
import torch
from torch.utils.data import DataLoader, TensorDataset

model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
def made(size):
    return DataLoader(TensorDataset(torch.randn(size, 4)), batch_size=8)
for epoch in range(40):
    train = made(32 + epoch)
    for (x,) in train:
        optimizer.zero_grad()
        model(x).mean().backward()
        optimizer.step()
    with torch.no_grad():
        for (x,) in made(8 + epoch % 2):
            model.eval()(x)
    model.train()
"""


def test_a_loader_made_again_of_more_data_is_one_and_not_that_of_the_evaluation(
    tmp_path: Path,
) -> None:
    loaders = watch_code(tmp_path, GROWS, windows=["baseline"]).evidence().get(Loaders)
    assert loaders
    assert {(x.role, x.made) for x in loaders.loaders} == {("train", 40), ("eval", 40)}


@pytest.mark.parametrize("workers", [0, 1])
def test_files_random_numbers_and_values_of_a_fetch(workers: int, tmp_path: Path) -> None:
    run = watch_code(tmp_path, CODE, str(workers), windows=["baseline"])
    assert run.returncode == 0, run.err
    assert run.of("failure") == []
    loaders = run.evidence().get(Loaders)
    assert loaders
    loader: Loader = loaders.loaders[0]
    assert (loader.samples, loader.opens) == (4, 4)
    assert loader.open_folders == ((str(tmp_path), 4.0),)
    assert loader.opened_bytes == 128 + 3 * 40 * 40
    assert loader.random is (workers > 0)
    image, label, extra = loader.fields
    assert (image.name, image.dtype, image.bytes) == ("image", "float32", 4 * 4 * 3 * 1600)
    assert (image.minimum, image.integral, image.of_255) == (0.0, False, True)
    assert image.maximum == pytest.approx(7 / 255)
    assert (label.name, label.dtype, label.integral, label.of_255) == (
        "extra.0", "int64", True, False,
    )  # fmt: skip
    assert label.minimum == 0.0 and (label.maximum or 0) >= 3
    assert (extra.name, extra.integral, extra.of_255) == ("extra.1", False, False)
    # Only the first fetches of the first pass are read.
    workers_seen = {r.get("worker") for r in run.of("fetch")}
    assert workers_seen == ({None} if workers == 0 else {0})
    assert 1 <= sum("fields" in r for r in run.of("fetch")) <= 4


EVALUATED_FIRST = """
import time
import torch
from torch.utils.data import DataLoader, TensorDataset
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
with torch.no_grad():
    for (x,) in DataLoader(TensorDataset(torch.randn(160, 4)), batch_size=16):
        model(x)
for epoch in range(2):
    for (x,) in DataLoader(TensorDataset(torch.randn(1600, 4)), batch_size=16):
        time.sleep(0.003)  # a fetch is measured every 0.2 s
        optimizer.zero_grad()
        model(x).mean().backward()
        optimizer.step()
"""


def test_the_first_fetches_of_each_loader_are_read(tmp_path: Path) -> None:
    """Those of an evaluation before the training are not all that is known."""
    loaders = watch_code(tmp_path, EVALUATED_FIRST, windows=["baseline"]).evidence().get(Loaders)
    train = loaders.train() if loaders else None
    assert train is not None
    assert train.random is False and train.fields


FEW_FETCHES = """
import os
import time
import torch
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data._utils.fetch import _MapDatasetFetcher

def ours():
    return "tdiag" in _MapDatasetFetcher.fetch.__code__.co_filename

model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
assert ours()
seen = set()
for (x,) in DataLoader(TensorDataset(torch.randn(1600, 4)), batch_size=16):
    time.sleep(0.01)
    seen.add(ours())
    optimizer.zero_grad()
    model(x).mean().backward()
    optimizer.step()
assert seen == {True, False}  # the first ones are all measured
child = os.fork()
if child == 0:
    os._exit(0 if ours() else 1)
assert os.waitpid(child, 0)[1] == 0
"""


def test_fetches_are_measured_now_and_then_and_not_wrapped_in_between(tmp_path: Path) -> None:
    """And a forked process, which may be a worker, measures its own."""
    watched = watch_code(tmp_path, FEW_FETCHES)
    assert watched.returncode == 0, watched.err
    times = [fetch["t"] for fetch in watched.of("fetch")]
    assert 4 + 3 <= len(times) < 40
    assert all(b - a >= 0.2e9 for a, b in pairwise(times[4:]))


HIDDEN = """
import random, sys
import torch
from torch.utils.data import DataLoader, Dataset

class Flip:
    def __init__(self, rng):
        self.rng = rng
    def __call__(self, x):
        return x.flip(0) if self.rng.random() < 0.5 else x

where, rng = sys.argv[1], random.Random(0)
OF_THE_MODULE = Flip(rng) if where == "global" else None

class Mine(Dataset):
    OF_THE_CLASS = Flip(rng) if where == "class" else None
    def __init__(self):
        same = lambda x: x
        steps = [same] * 20 + ([Flip(rng)] if where == "list" else [])
        self.steps = {"train": steps, "test": []}
    def __len__(self):
        return 64
    def __getitem__(self, i):
        x = torch.full((4,), float(i))
        for step in [*self.steps["train"], self.OF_THE_CLASS, OF_THE_MODULE]:
            x = step(x) if step else x
        return x

model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for x in DataLoader(Mine(), batch_size=4):
    optimizer.zero_grad()
    model(x).mean().backward()
    optimizer.step()
"""


@pytest.mark.parametrize("where", ["list", "class", "global", "nowhere"])
def test_a_generator_is_found_wherever_the_dataset_draws_from(where: str, tmp_path: Path) -> None:
    run = watch_code(tmp_path, HIDDEN, where, windows=["baseline"])
    assert run.returncode == 0, run.err
    loaders = run.evidence().get(Loaders)
    assert loaders
    assert loaders.loaders[0].random is (where != "nowhere")
