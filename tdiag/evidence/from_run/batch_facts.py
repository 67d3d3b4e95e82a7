"""What happened to each batch of the clean steps: waited for, evaluated, computed with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from tdiag.evidence.from_run.roles import (
    BATCH,
    EVAL_BATCH,
    EVAL_MODEL,
    GRADIENT,
    LOSS,
    MODEL,
    Mask,
    Roles,
)
from tdiag.evidence.from_run.slices import SWITCH, Ints, Slices
from tdiag.probe.wire import GRAD_ON, ITERATOR_MADE, MODULE_SHIFT, OF_GRAD, TRAINING_MODE


@dataclass(frozen=True)
class _Requests:
    """Rows of :class:`BatchFacts` that ask a loader, loader by loader. ``made``: in
    ``iter(loader)``; ``edge``: a pass's first or last request; ``empty``: a last request from which
    nothing was computed before the next pass, because no batch was left."""

    index: Ints
    made: Mask
    edge: Mask
    empty: Mask


class BatchFacts:
    """Facts about each batch of the clean steps."""

    def __init__(self, timeline: Slices, roles: Roles, clean: Mask) -> None:
        keep = clean[timeline.step[roles.index]] & (timeline.kind[roles.index] != SWITCH)
        self.index, self.role = roles.index[keep], roles.role[keep]
        self.wall = timeline.wall[self.index]
        self.arg, self.ret = timeline.arg[self.index], timeline.ret[self.index]

    def waits(self) -> list[int]:
        """Durations of the usual waits for a batch, without a pass's first and last request."""
        requests = self.requests
        usual = self.wall[requests.index[~requests.made & ~requests.edge]]
        return [int(ns) for ns in usual]

    def given(self) -> dict[int, int]:
        """The number of batches from each loader, by its number."""
        requests = self.requests
        loaders = self.arg[requests.index[~requests.made & ~requests.empty]]
        return dict(zip(*(x.tolist() for x in np.unique(loaders, return_counts=True)), strict=True))

    @cached_property
    def requests(self) -> _Requests:
        batch = np.flatnonzero(self.role == BATCH)
        index = batch[np.argsort(self.arg[batch], kind="stable")]
        made, loader = self.ret[index] == ITERATOR_MADE, self.arg[index]
        same = loader[1:] == loader[:-1]
        first = np.append(False, made[:-1] & same)[: len(index)] & ~made
        last = np.append(made[1:] & same, False)[: len(index)] & ~made
        worked = np.cumsum(np.isin(self.role, (MODEL, LOSS, GRADIENT)))[index]
        return _Requests(index, made, first | last, last & (np.append(worked[1:], 0) == worked))

    def starting_ns(self) -> float:
        """Time to start and end passes over the data: in ``iter(loader)``, and the time beyond the
        usual wait for the first batch after it (workers start, and their queue is empty) and the
        last request before it (no batch is left, workers are ending)."""
        requests, usual = self.requests, self.waits()
        wall = self.wall[requests.index]
        beyond = wall[requests.edge] - (np.median(usual) if usual else 0.0)
        return float(wall[requests.made].sum() + beyond[beyond > 0].sum())

    def evaluated(self, bare: Sequence[int]) -> int:
        """Evaluated batches: those of loaders whose batches a model was called on, else calls of
        models. ``bare``: modules without parameters, which are not models (a criterion, an
        activation)."""
        model = self.role == EVAL_MODEL
        fed = (self.role == EVAL_BATCH) & np.append(model[1:], False)
        return int(fed.sum()) or int((model & ~np.isin(self.arg >> MODULE_SHIFT, bare)).sum())

    def eval_evident(self, losses: Sequence[int], bare: Sequence[int]) -> bool:
        """Whether a loader feeds it or a loss is applied to it. ``losses``: torch's own; ``bare``:
        modules without parameters, which are a loss if they return a single number, else a part of
        the model."""
        module = self.arg >> MODULE_SHIFT
        judged = np.isin(module, losses) | (np.isin(module, bare) & (self.ret == 1))
        judged &= self.role == EVAL_MODEL
        return bool(judged.any() or (self.role == EVAL_BATCH).any())

    def grad_calls(self) -> int:
        """Calls of ``torch.autograd.grad`` in training."""
        return int(((self.role == GRADIENT) & (self.arg == OF_GRAD)).sum())

    def eval_grad_frac(self) -> float | None:
        model = self.role == EVAL_MODEL
        total = int(self.wall[model].sum())
        recording: npt.NDArray[np.bool_] = model & (self.arg & GRAD_ON > 0)
        return int(self.wall[recording].sum()) / total if total else None

    def train_mode_frac(self, role: int, models: Sequence[int]) -> float | None:
        """The share of these modules' time in this role that they were in training mode."""
        chosen = (self.role == role) & np.isin(self.arg >> MODULE_SHIFT, models)
        if role == MODEL:
            chosen &= self.arg & GRAD_ON > 0  # a frozen teacher is in eval mode on purpose
        total = int(self.wall[chosen].sum())
        return (
            int(self.wall[chosen & (self.arg & TRAINING_MODE > 0)].sum()) / total if total else None
        )

    def eval_mode_frac(self, models: Sequence[int]) -> float | None:
        trains = bool((self.role == GRADIENT).any())
        training = self.train_mode_frac(MODEL, models) if trains else None
        return None if training is None else 1.0 - training
