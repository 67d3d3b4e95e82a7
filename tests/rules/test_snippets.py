"""The code that a fix offers to paste does what the fix says."""

from __future__ import annotations

import contextlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tdiag.rules import snippets


@pytest.fixture(scope="module", autouse=True)
def torch_imported() -> None:
    """Not when tests are collected: one rule's tests would take twice as long."""
    global torch
    import torch


class Photos:
    """Counts how often each sample is made."""

    def __init__(self) -> None:
        self.made = [0] * 6

    def __len__(self) -> int:
        return len(self.made)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int, float]:
        self.made[index] += 1
        return torch.full((2, 3), float(index)), index, index / 2


def batches(dataset: Any, workers: int = 0) -> list[list[torch.Tensor]]:
    return list(torch.utils.data.DataLoader(dataset, batch_size=4, num_workers=workers))


def same(one: list[list[torch.Tensor]], other: list[list[torch.Tensor]]) -> bool:
    pairs = [(a, b) for x, y in zip(one, other, strict=True) for a, b in zip(x, y, strict=True)]
    return all(a.dtype == b.dtype and torch.equal(a, b) for a, b in pairs)


@pytest.mark.parametrize(
    "code", [snippets.files_in_memory("D", ""), snippets.samples_in_memory("D"),
             snippets.samples_on_disk("D"), snippets.batches_ahead()],
)  # fmt: skip
def test_no_line_is_folded_on_a_terminal_of_80_columns(code: str) -> None:
    """A folded line of Python cannot be pasted. The report indents by 6."""
    assert max(map(len, code.splitlines())) <= 74


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


class OnDevice:
    """A batch's tensor that logs its copies; there is no device here."""

    def __init__(self, name: str, log: list[str]) -> None:
        self.name, self.log = name, log

    def to(self, device: str, non_blocking: bool) -> OnDevice:
        assert non_blocking
        self.log.append(f"copy {self.name}")
        return self

    def record_stream(self, stream: object) -> None:
        self.log.append(f"in use {self.name}")


def test_the_next_batch_is_copied_before_the_step_of_this_one() -> None:
    log: list[str] = []
    cuda = SimpleNamespace(
        Stream=object,
        stream=lambda stream: contextlib.nullcontext(),
        current_stream=lambda: SimpleNamespace(wait_stream=lambda stream: log.append("wait")),
    )
    batches = [(OnDevice(f"x{n}", log), OnDevice(f"y{n}", log)) for n in range(3)]
    code = snippets.batches_ahead().replace("...", "log.append(f'step {inputs.name}')")
    scope = {"torch": SimpleNamespace(cuda=cuda), "loader": batches, "device": "cuda", "log": log}
    exec(code, scope)
    inputs = [line for line in log if "y" not in line.split()[-1]]
    assert inputs == [
        "copy x0", "wait", "in use x0", "copy x1", "step x0", "wait", "in use x1", "copy x2",
        "step x1", "wait", "in use x2", "step x2",
    ]  # fmt: skip
