"""Which tensors are sent to another device again in each counted step."""

import torch

from tdiag.probe.sent_again import SentAgain

SENT = torch.zeros(2)


def counts(*steps: tuple[int, torch.Tensor]) -> list[int]:
    again = SentAgain()
    return [again.seen(step, tensor, SENT)[0] for step, tensor in steps]


def test_a_constant_counts_from_the_third_step_with_the_one_before() -> None:
    constant = torch.zeros(2)
    assert counts(*((step, constant) for step in (12, 583, 584, 585))) == [0, 0, 2, 1]


def test_batches_taken_in_turn_are_no_constants() -> None:
    """Four that take turns: that of step 12 comes again in step 584."""
    batches = torch.zeros(4, 2).unbind()
    assert counts(*((step, batches[step % 4]) for step in (12, 583, 584, 585, 588))) == [0] * 5


def test_a_tensor_that_changed_is_another() -> None:
    table = torch.zeros(2)
    again = SentAgain()
    for step in (1, 2, 3):
        assert again.seen(step, table, SENT) == (0, 0)
        table += 1


def test_every_copy_within_a_step_counts() -> None:
    """A constant that three layers move."""
    constant = torch.zeros(2)
    steps = [(step, constant) for step in (12, 583, 584) for _ in range(3)]
    assert counts(*steps) == [0] * 6 + [4, 1, 1]
