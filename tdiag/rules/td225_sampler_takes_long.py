"""Choosing the samples of a batch takes long

## What it measures
Samples of the training thread in which a DataLoader asks its sampler or batch sampler for the next
indices, while the training waits for data. With workers, too, the training process chooses.

## Why it is slow
Workers fetch samples, but the training thread draws their indices, so no worker hides this time. A
sampler that goes through all indices for each batch (a permutation of a large data set, sorting
what is left, a list it filters) does an epoch's work in every step.

`next(iter(loader))` in a step is the same: it draws the order of all samples, as a list of Python
numbers, takes one batch, and drops the rest.

## What to do
Draw the order of an epoch once, with one tensor call, and cut it into batches. To draw with
replacement, draw only as many numbers as a batch needs. Keep the iterator of a loader from step to
step, and make a new one when it ends.

## How the gain is computed
The share of the samples as time of the step. High end: all of it; low end: half. If the loader
begins anew in most steps, high end: the whole wait, and the line that asks for the batch, which
also drops what was not used; low end: it is chosen once an epoch.

## When this advice is wrong
If the choice depends on what was just learned (hard examples), it must be made in each step; then
make it cheaper.
"""

from __future__ import annotations

from collections import defaultdict

from tdiag.evidence.feeding import Loader, Loaders
from tdiag.evidence.sampled import CallFrame, CallTrees, Stacks
from tdiag.evidence.steps import Budget, Phases, StepHistory
from tdiag.evidence.store import Evidence
from tdiag.model.diagnosis import Fix
from tdiag.model.place import Place
from tdiag.model.threshold import MAJORITY_FRAC, NOTICEABLE_FRAC
from tdiag.rules.base import (
    DATA_WAIT,
    Found,
    Gain,
    count,
    frac,
    held,
    known_to,
    sampling_range,
    text,
    where,
)
from tdiag.rules.callers import inclusive
from tdiag.rules.examples import at, budget, loaders, stacks
from tdiag.rules.loop_lines import check_samples
from tdiag.rules.thresholds import LOW_END_FRAC
from tdiag.units import percent

CODE = "TD225"
NAME = "sampler-takes-long"
CLASS = "cpu"
UNTRIED = "the sampler must be rewritten; `ceiling.data` bounds the gain"

# The method of DataLoader's iterators that asks the sampler, in torch/utils/data/dataloader.py.
_ASKS = "_next_index"
_LOADER_FILE = "torch/utils/data/dataloader.py"


def check(
    budget: Budget,
    loaders: Loaders,
    stacks: Stacks,
    trees: CallTrees,
    history: StepHistory | None,
    phases: Phases | None,
) -> Found | None:
    check_samples(stacks)
    share, at, asking = _choosing(trees)
    least, most = known_to(share, stacks.samples)
    if least < NOTICEABLE_FRAC:
        return None
    train = loaders.train()
    if train is not None and asking is not None and _begins_anew(train, history):
        collected = phases.gc_in_wait_ns if phases else 0.0
        return _begun(share, asking, train, budget, stacks, trees, collected)
    at = at or (train.created_at if train else None)
    name = (train.sampler_class if train else "") or "the sampler"
    return Found(
        summary=(
            f"Choosing the samples of the batches{where(at)} takes {percent(share)} of the training"
            " thread's time: no worker does that."
        ),
        evidence=(
            frac("samples that choose", share, "sample"),
            text("sampler", name, "probe"),
        ),
        fix=Fix(
            f"Draw the order of an epoch once{where(at)}, with one tensor call, and cut it into"
            " batches; or draw only as many numbers as a batch needs.",
            "review",
            action="Draw the order once per epoch",
            code="order = torch.randperm(len(dataset)).split(batch_size)  # once per epoch",
        ),
        gain=Gain(
            least * LOW_END_FRAC * budget.step_ns,
            most * budget.step_ns,
            f"high end: without it; low end: at half its cost;"
            f" {sampling_range(stacks.samples, least, most)}.",
            DATA_WAIT,
        ),
        at=at,
    )


def _begins_anew(loader: Loader, history: StepHistory | None) -> bool:
    """Whether most steps begin a pass over the loader, and a pass has more batches than one."""
    if not loader.sampler_len or not loader.batch_size or history is None:
        return False
    more = loader.sampler_len > loader.batch_size
    return more and len(history.epochs_ns) > MAJORITY_FRAC * len(history.end_ns)


def _begun(
    share: float,
    at: Place,
    loader: Loader,
    budget: Budget,
    stacks: Stacks,
    trees: CallTrees,
    collected: float,
) -> Found:
    """The loader's order is drawn for each step, of which one batch is taken. ``collected``:
    garbage collection that its many numbers cause while the training waits, ns per step."""
    assert loader.sampler_len and loader.batch_size
    line = inclusive(at, trees)
    least, _ = known_to(share, stacks.samples)
    _, most = known_to(max(share, line), stacks.samples)
    return Found(
        summary=(
            f"Each step begins a new pass over the loader{where(at)}: it chooses the order of all"
            f" {loader.sampler_len:,} samples, {percent(share)} of the training thread's time, and"
            f" takes {loader.batch_size:,} of them."
        ),
        evidence=(
            frac("samples that choose", share, "sample"),
            frac(f"samples{where(at)}", line, "sample"),
            count("samples of the loader", loader.sampler_len, "probe"),
        ),
        fix=Fix(
            f"Make the loader's iterator once before the loop, call next on it{where(at)}, and make"
            " a new one when it ends.",
            "review",
            action="Keep the loader's iterator from step to step",
            code="def endless(loader):\n    while True:\n        yield from loader\n\n"
            "batches = endless(loader)  # before the loop\nbatch = next(batches)  # in it",
        ),
        gain=Gain(
            least * (1 - loader.batch_size / loader.sampler_len) * budget.step_ns,
            max(most * budget.step_ns, held(budget, *DATA_WAIT) + collected),
            "high end: without all of the wait and of the line, which also drops the rest of the"
            " order; low end: it is chosen once an epoch;"
            f" {sampling_range(stacks.samples, least, most)}.",
            (*DATA_WAIT, "prepare", *(("gc",) if collected else ())),
        ),
        at=at,
    )


def _choosing(trees: CallTrees) -> tuple[float, Place | None, Place | None]:
    """The share of the samples that ask a sampler, the user's innermost line with most of them, and
    the user's line that asks for the batch in most of them."""
    share = 0.0
    lines: dict[Place, float] = defaultdict(float)
    asking: dict[Place, float] = defaultdict(float)
    users: list[Place | None] = []  # a frame's innermost line of the user, its own or a caller's
    inside: list[bool] = []  # a frame's caller comes before it
    for frame in trees.training:
        caller = users[frame.parent] if frame.parent >= 0 else None
        line = Place(file=frame.file, line=frame.line, function=frame.name)
        users.append(line if frame.user else caller)
        above = frame.parent >= 0 and inside[frame.parent]
        asks = frame.name.endswith(_ASKS) and frame.file.endswith(_LOADER_FILE)
        inside.append(above or asks)
        if asks and not above:
            share += frame.frac
            if caller is not None:
                asking[caller] += frame.frac
        if above and frame.user:
            lines[line] = max(lines[line], frame.frac)
    most = max(lines.values(), default=0.0)
    # Of a line and those that it calls the innermost with as many samples.
    at = next((x for x in reversed(lines) if lines[x] >= (1 - NOTICEABLE_FRAC) * most), None)
    return share, at, max(asking, key=lambda x: asking[x], default=None)


def fires() -> Evidence:
    """A permutation of all windows for each batch."""
    return _drawing(0.6)


def clear() -> Evidence:
    return _drawing(0.01)


def _drawing(share: float) -> Evidence:
    torch = f"/opt/lib/{_LOADER_FILE}"
    frames = (
        CallFrame(name="main", file=at(60).file, line=60, parent=-1, frac=1.0, user=True),
        CallFrame(name="_next_data", file=torch, line=0, parent=0, frac=0.7, user=False),
        CallFrame(name=f"_BaseDataLoaderIter.{_ASKS}", file=torch, line=0, parent=1, frac=share,
                  user=False),
        CallFrame(name="Windows.__iter__", file=at(49).file, line=49, parent=2, frac=share,
                  user=True),
    )  # fmt: skip
    step = budget(data_wait_cpu=70, forward=10, backward=20)
    return Evidence().add(step, loaders(), stacks(), CallTrees(training=frames, workers=()))
