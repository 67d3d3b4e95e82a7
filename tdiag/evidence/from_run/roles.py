"""What each region of a timeline was for: training, its loss, or an evaluation."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from tdiag.evidence.from_run.records import ModuleRecord
from tdiag.evidence.from_run.slices import (
    BACKWARD,
    FORWARD,
    NEXT,
    OPTIMIZER,
    SWITCH,
    Ints,
    Slices,
)
from tdiag.model.threshold import MAJORITY_FRAC, Threshold
from tdiag.probe.wire import BY_BATCH, GRAD_ON, ITERATOR_MADE, MODULE_SHIFT, TRAINING_MODE

Mask: TypeAlias = npt.NDArray[np.bool_]

# What a region is for. START means "nothing before".
START, BATCH, MODEL, LOSS, GRADIENT, UPDATE, EVAL_BATCH, EVAL_MODEL = range(8)

TRAIN_VOTE_FRAC = Threshold(
    0.1,
    "of a loader's batches",
    "Heuristic: losses of up to ten batches may be summed before one backward, while the batches of"
    " an evaluation lead to none at all.",
)


@dataclass(frozen=True)
class Roles:
    """``index``: the regions that matter, in order; ``role``: the purpose of each; ``loaders``:
    loader id → ``train`` or ``eval``."""

    index: Ints
    role: Ints
    loaders: dict[int, str]


def assign_roles(timeline: Slices, modules: Mapping[int, ModuleRecord], boundary: str) -> Roles:
    """Distinguish training, loss and evaluation by the order of regions.

    ``boundary``: what ends a step. If it is ``batch``, nothing is ever trained, and calling the
    model is the work itself.
    """
    kinds = (NEXT, FORWARD, BACKWARD, OPTIMIZER, SWITCH)
    index = np.flatnonzero(np.isin(timeline.kind, kinds) & ~timeline.covered)
    seen = _Regions(timeline, index, modules)
    role = np.full(len(index), UPDATE)
    role[seen.kind == NEXT] = BATCH
    role[seen.kind == BACKWARD] = GRADIENT
    role[seen.model] = MODEL
    role[seen.model & seen.losses] = LOSS
    matter = seen.kind != SWITCH
    if boundary == BY_BATCH:
        loaders = {int(loader): "train" for loader in np.unique(seen.arg[seen.kind == NEXT])}
    else:
        loaders = seen.loader_roles()
        evaluated, switched = seen.evaluated(loaders), seen.switched()
        role[(evaluated & seen.model) | switched] = EVAL_MODEL
        role[evaluated & (seen.kind == NEXT)] = EVAL_BATCH
        matter |= switched
    return Roles(index[matter], role[matter], loaders)


class _Regions:
    """The regions that matter, as columns, cut into segments at each batch and step end."""

    def __init__(self, timeline: Slices, index: Ints, modules: Mapping[int, ModuleRecord]) -> None:
        self.kind, self.arg, self.ret = (
            column[index] for column in (timeline.kind, timeline.arg, timeline.ret)
        )
        self.step = timeline.step[index]
        self.steps = timeline.steps
        self.model = self.kind == FORWARD
        self.module = self.arg >> MODULE_SHIFT
        new_step = np.diff(self.step, prepend=-1) != 0
        self.segment = np.cumsum((self.kind == NEXT) | new_step)
        size = int(self.segment[-1]) + 1 if len(index) else 1
        order = np.arange(len(index))
        self.has_batch = np.bincount(self.segment, self.kind == NEXT, size) > 0
        self.followed = _last(order, self.segment, self.kind == BACKWARD, size) > order
        self.trains_later = _last(order, self.step, self.kind == BACKWARD, self.steps) > order
        self.losses = self._losses(modules)
        self.mode = self.arg & (TRAINING_MODE | GRAD_ON)
        self.candidate = self.model & (self.mode != (TRAINING_MODE | GRAD_ON))
        self.habit = self._habitual(self.model)
        trained = self._still(self.model & self.trains_later & (self.mode & GRAD_ON > 0))
        self.teacher = self.candidate & self.habit & ~trained & self.trains_later

    def _losses(self, modules: Mapping[int, ModuleRecord]) -> Mask:
        """Module calls that compute a loss: torch's own loss classes, and a module called after a
        module with parameters that has none itself or returns a single number."""
        losses = np.zeros(len(self.kind), np.bool_)
        called: set[int] = set()
        segment = -1
        columns = [c.tolist() for c in (self.kind, self.segment, self.module, self.ret)]
        for i, (kind, here, module, ret) in enumerate(zip(*columns, strict=True)):
            if kind == BACKWARD or here != segment:
                called.clear()
                segment = here
            if kind != FORWARD:
                continue
            about = modules.get(module)
            bare = about is not None and not about.parameters
            follows = bool(called - {module})
            if (about is not None and about.loss) or (follows and (bare or ret == 1)):
                losses[i] = True
            elif about is None or about.parameters:
                called.add(module)
        return losses

    def loader_roles(self) -> dict[int, str]:
        """``train`` if its batches led to backward. A batch whose use was not seen (from the first
        of two zipped loaders, at the end of an epoch) gets the role of the next batch, unless
        something else shows it."""
        size = len(self.has_batch)
        trains = np.bincount(self.segment, self.kind == BACKWARD, size) > 0
        evaluates = np.bincount(self.segment, self.model & ~self.teacher, size) > 0
        votes: dict[int, list[bool]] = defaultdict(list)
        follow: dict[int, list[bool]] = defaultdict(list)
        used = False
        batches = np.flatnonzero(self.kind == NEXT)[::-1]
        segments = self.segment[batches]
        columns = (self.arg[batches], trains[segments], evaluates[segments], self.ret[batches])
        for loader, trained, evaluated, ret in zip(*(c.tolist() for c in columns), strict=True):
            if trained or evaluated:
                used = trained
                if ret != ITERATOR_MADE:
                    votes[loader].append(used)
            follow[loader].append(used)
        decisive = {loader: votes.get(loader) or follow[loader] for loader in follow}
        return {
            loader: "train" if sum(v) >= TRAIN_VOTE_FRAC * len(v) else "eval"
            for loader, v in decisive.items()
        }

    def evaluated(self, loaders: Mapping[int, str]) -> Mask:
        """Regions of evaluations; docs/phases.md explains how they are recognised."""
        by_hand = self.followed & ~self.has_batch[self.segment] & (self._toggled() | ~self.habit)
        found = self.candidate & (by_hand | (~self.followed & ~self.teacher))
        return self._spread(found, loaders)

    def switched(self) -> Mask:
        """Moments when a model that trains on was switched to evaluation mode, in few steps."""
        switch = self.kind == SWITCH
        result: Mask = switch & self._toggled() & ~self._habitual(switch)
        return result

    def _toggled(self) -> Mask:
        """In evaluation mode, of a model that trains in training mode in this step or later."""
        in_train_mode = self.model & self.trains_later & (self.mode == (TRAINING_MODE | GRAD_ON))
        result: Mask = (self.mode & TRAINING_MODE == 0) & self._still(in_train_mode)
        return result

    def _still(self, calls: Mask) -> Mask:
        """Whether the region's module has one of these calls in its step or a later one. A teacher
        that the script trained first has none."""
        _, module = np.unique(self.module, return_inverse=True)
        last = np.full(int(module.max(initial=0)) + 1, -1)
        np.maximum.at(last, module[calls], self.step[calls])
        result: Mask = last[module] >= self.step
        return result

    def _habitual(self, which: Mask) -> Mask:
        """Whether these calls of this module in this mode happen in most steps since the first of
        them, or in most of half of all steps, whichever is more."""
        steps = max(1, self.steps)
        pairs = np.unique(self.arg[which] * steps + self.step[which])
        values, firsts, counts = np.unique(pairs // steps, return_index=True, return_counts=True)
        since = np.maximum(steps - pairs[firsts] % steps, MAJORITY_FRAC * steps)
        # What most steps do belongs to the training step; what fewer steps do is an evaluation.
        return np.isin(self.arg, values[counts >= MAJORITY_FRAC * since])

    def _spread(self, found: Mask, loaders: Mapping[int, str]) -> Mask:
        """Extend from the model's calls to the loss computed from them and to their batches."""
        size = len(self.has_batch)
        of_eval = np.isin(self.arg, [k for k, v in loaders.items() if v == "eval"])
        of_eval &= self.kind == NEXT
        whole = np.bincount(self.segment, found & ~self.followed, size) > 0
        whole |= np.bincount(self.segment, of_eval, size) > 0
        whole &= np.bincount(self.segment, self.kind == BACKWARD, size) == 0
        within: Mask = whole[self.segment] & (self.model | (self.kind == NEXT))
        result: Mask = found | within | of_eval
        for i in np.flatnonzero(self.losses & ~result).tolist():
            result[i] = i > 0 and result[i - 1] and self.model[i - 1]
        return result


def _last(order: Ints, group: Ints, where: Mask, groups: int) -> Ints:
    """For each row, the last row of its group where the mask is true, or −1."""
    last = np.full(groups, -1)
    np.maximum.at(last, group[where], order[where])
    result: Ints = last[group]
    return result
