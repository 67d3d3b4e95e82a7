"""Operands on a device are read after the step: a CPU stands for the device here."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tdiag.probe.capture import zeros

TOOK = 1_000_000


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """``mode``: what the script set by ``torch.cuda.set_sync_debug_mode``."""
    fake = SimpleNamespace(mode=0)
    monkeypatch.setattr(zeros, "readable", lambda value: False)
    monkeypatch.setattr(zeros, "_on_device", lambda value: not value.requires_grad)
    monkeypatch.setattr(torch.cuda, "get_sync_debug_mode", lambda: fake.mode)
    return fake


def line() -> Any:
    return SimpleNamespace(mostly_zero=0, nonzero=0, unwritten=0)


def test_what_still_exists_is_read_once_for_all_its_products(device: SimpleNamespace) -> None:
    watch, first, second = zeros.Zeros(), line(), line()
    near = torch.zeros(4096, 4096)  # all are 1 << 24 elements: of larger ones some rows are read
    near[:, 7] = 1.0
    dense = torch.ones(256, 256)
    for where in (first, first, second):
        watch.seen("matmul", (near, dense), {}, dense, where, TOOK)
    assert first.mostly_zero == 0
    watch.settle()
    assert (first.mostly_zero, second.mostly_zero) == (2 * TOOK, TOOK)
    assert first.nonzero == pytest.approx(2 * TOOK / 4096, rel=0.01)
    watch.settle()
    assert first.mostly_zero == 2 * TOOK


@pytest.mark.parametrize(("exists", "mode", "read"), [(True, 0, 1), (False, 0, 0), (True, 2, 0)])
def test_what_is_gone_or_must_not_be_waited_for_is_not_read(
    exists: bool, mode: int, read: int, device: SimpleNamespace
) -> None:
    """``mode`` 2: the script wants an error at each wait."""
    device.mode = mode
    watch, mine = zeros.Zeros(), line()
    near, dense = torch.zeros(256, 256), torch.ones(256, 256)
    near[0, 0] = 1.0
    watch.seen("matmul", (near, dense), {}, dense, mine, TOOK)
    if not exists:
        del near
    watch.settle()
    assert mine.mostly_zero == read * TOOK


def test_one_hot_vectors_are_known_unread(device: SimpleNamespace) -> None:
    watch, mine = zeros.Zeros(), line()
    device.mode = 2
    made = torch.nn.functional.one_hot(torch.arange(64), 1000)
    numbers = made.to(torch.bfloat16)
    watch.seen("one_hot", (torch.arange(64), 1000), {}, made, mine, 1)
    watch.seen("to", (made, torch.bfloat16), {}, numbers, mine, 1)
    watch.seen("linear", (numbers, torch.ones(8, 1000)), {}, numbers, mine, TOOK)
    assert (mine.mostly_zero, mine.nonzero) == (TOOK, TOOK // 1000)


def test_of_a_huge_operand_some_rows_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zeros, "MOST", 1 << 16)
    near = torch.zeros(1024, 1024)
    near[:, 3] = 1.0
    assert zeros._nonzero(near) == pytest.approx(1 / 1024)
