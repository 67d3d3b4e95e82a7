"""The code that a fix offers to paste does what the fix says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from tdiag.rules import snippets


class Photos(Dataset[Any]):
    """Counts how often each sample is made."""

    def __init__(self) -> None:
        self.made = [0] * 6

    def __len__(self) -> int:
        return len(self.made)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int, float]:
        self.made[index] += 1
        return torch.full((2, 3), float(index)), index, index / 2


def batches(dataset: Dataset[Any], workers: int = 0) -> list[list[torch.Tensor]]:
    return list(DataLoader(dataset, batch_size=4, num_workers=workers))


def same(one: list[list[torch.Tensor]], other: list[list[torch.Tensor]]) -> bool:
    pairs = [(a, b) for x, y in zip(one, other, strict=True) for a, b in zip(x, y, strict=True)]
    return all(a.dtype == b.dtype and torch.equal(a, b) for a, b in pairs)


@pytest.mark.parametrize("workers", [0, 2])
def test_samples_in_memory_are_made_once_and_give_the_same_batches(workers: int) -> None:
    photos = Photos()
    plain = batches(Photos())
    scope: dict[str, Any] = {"dataset": photos}
    exec(snippets.samples_in_memory("Photos"), scope)
    made = list(photos.made)
    assert same(batches(scope["dataset"], workers), plain)
    assert same(batches(scope["dataset"], workers), plain)
    assert photos.made == made and max(made[1:]) == 1


def test_samples_on_disk_are_made_once_and_outlive_the_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    photos, later = Photos(), Photos()
    for each in (photos, later):
        scope: dict[str, Any] = {"dataset": each}
        exec(snippets.samples_on_disk("Photos"), scope)
        assert same(batches(scope["dataset"]), batches(Photos()))
    assert (photos.made, later.made) == ([1] * 6, [0] * 6)


def test_files_in_memory_are_read_once(tmp_path: Path) -> None:
    contents = [b"one", b"", b"three"]
    paths = [tmp_path / str(index) for index in range(3)]
    for path, content in zip(paths, contents, strict=True):
        path.write_bytes(content)
    scope: dict[str, Any] = {}
    exec(snippets.files_in_memory("Photos", " at train.py:18"), scope)
    files = scope["CachedFiles"](paths)
    for path in paths:
        path.unlink()
    assert [files.open(index).read() for index in range(3)] == contents
