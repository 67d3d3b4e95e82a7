"""What is known of tensors goes with them."""

from __future__ import annotations

import torch

from tdiag.probe.by_tensor import ByTensor


def test_tensors_are_known_by_themselves_not_by_what_they_hold() -> None:
    one, other = torch.ones(2), torch.ones(2)
    known: ByTensor[int] = ByTensor()
    known.keep(one, 1)
    assert one in known and other not in known and None not in known
    assert (known.get(one), known.get(other), known.get(None)) == (1, None, None)
    known.keep(one, 2)
    assert known.get(one) == 2 and len(known) == 1
    known.drop(one)
    known.drop(other)
    assert one not in known


def test_another_tensor_that_gets_an_old_ones_id_is_not_known() -> None:
    known: ByTensor[int] = ByTensor()
    gone = set()
    for _ in range(50):
        tensor = torch.ones(1)
        gone.add(id(tensor))
        known.keep(tensor, 1)
        del tensor
    later = [torch.ones(1) for _ in range(200)]
    assert gone & set(map(id, later))  # or nothing is tested
    assert not any(tensor in known for tensor in later) and known.alive() == []


def test_beyond_the_most_only_what_is_known_already_is_kept() -> None:
    one, other = torch.ones(1), torch.ones(1)
    known: ByTensor[int] = ByTensor(1)
    for value in (1, 2):
        known.keep(one, value)
        known.keep(other, value)
    assert [(tensor is one, value) for tensor, value in known.alive()] == [(True, 2)]
