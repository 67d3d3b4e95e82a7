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
    sends: int  # in the last of them


class SentAgain:
    """Lives as long as the process: a window counts only one or two steps."""

    def __init__(self) -> None:
        self.step = self.before = -1  # the counted step, and the one before it
        self.sent: dict[int, SentTensor] = {}  # by the tensor's id

    def seen(self, step: int, source: torch.Tensor, result: torch.Tensor) -> tuple[int, int]:
        """(times, bytes) that this copy adds to those of unchanged tensors: with the first of the
        third step in a row also those of the second, which the window may have counted."""
        if step != self.step:
            self.step, self.before = step, self.step
        times, sends, again = 1, 1, 0
        last = self.sent.get(id(source))
        if last is not None and last.ref() is source and last.version == source._version:
            if last.step == step:
                times, sends = last.times, last.sends + 1
                again = int(times >= IN_A_ROW)
            elif last.step == self.before:
                times = last.times + 1
                again = int(times >= IN_A_ROW) + last.sends * (times == IN_A_ROW)
        self.sent[id(source)] = SentTensor(weakref.ref(source), source._version, step, times, sends)
        return again, again * nbytes(result)
