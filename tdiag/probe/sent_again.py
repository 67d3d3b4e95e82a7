"""Tensors that are sent to another device in each counted step although nothing changed them."""

from __future__ import annotations

import weakref
from typing import NamedTuple

import torch

from .models import nbytes

# Counted steps in a row. Two say nothing: batches that a script keeps and takes in turn come again,
# too.
IN_A_ROW = 3


class SentTensor(NamedTuple):
    ref: weakref.ref[torch.Tensor]
    version: int
    step: int
    times: int  # counted steps in a row


class SentAgain:
    """Lives as long as the process: a window counts only one or two steps."""

    def __init__(self) -> None:
        self.step = self.before = -1  # the counted step, and the one before it
        self.sent: dict[int, SentTensor] = {}  # by the tensor's id

    def seen(self, step: int, source: torch.Tensor, result: torch.Tensor) -> tuple[int, int]:
        """(times, bytes) that this copy adds to those of unchanged tensors: with the third copy in
        a row also the second, whose step the window may have counted."""
        if step != self.step:
            self.step, self.before = step, self.step
        last = self.sent.get(id(source))
        if last is not None and (last.ref() is not source or last.version != source._version):
            last = None
        if last is not None and last.step == step:
            return 0, 0
        times = last.times + 1 if last is not None and last.step == self.before else 1
        self.sent[id(source)] = SentTensor(weakref.ref(source), source._version, step, times)
        again = 0 if times < IN_A_ROW else 2 if times == IN_A_ROW else 1
        return again, again * nbytes(result)
