"""Collating takes a large part of the fetch

## What it measures
The training thread waits for batches, and `collate_fn` takes a large part of the fetch time, more
than copying the batch's bytes once.

## Why it is slow
A collate function that loops over samples, tokens or fields in Python runs on one core and turns
every number into a Python object.

## What to do
Return arrays or tensors from the dataset, allocate the batch once, and fill or stack it with one
tensor call per field (`torch.stack`, `pad_sequence`, `torch.from_numpy`). Or index whole batches.

## How the gain is computed
From the collate time beyond copying the batch once. High end: all of it. Low end: 85 % of it, which
all twins but one saved.

## When this advice is wrong
Large batches of large samples are bound by memory bandwidth: smaller dtypes help, another collate
function does not.
"""

from __future__ import annotations

from tdiag.evidence.feeding import Loader, Loaders
from tdiag.evidence.machine import System
from tdiag.evidence.sampled import Stacks
from tdiag.evidence.steps import Budget, Phases
from tdiag.evidence.store import Evidence
from tdiag.model.diagnosis import Fix
from tdiag.model.place import Place
from tdiag.model.threshold import Threshold
from tdiag.rules.base import DATA_WAIT, Found, Gain, bytes_, frac, ns, same_function, where
from tdiag.rules.examples import at, budget, loaders, system
from tdiag.rules.feed import Feed, feed_of
from tdiag.rules.fetch_lines import collate_place, dataset_place, top_fetch_lines
from tdiag.rules.thresholds import REPLACED_LOW_FRAC
from tdiag.units import duration, percent

CODE = "TD206"
NAME = "collate-dominates-fetch"
CLASS = "cpu"
UNTRIED = "needs another collate function; `--freeze` of the current one bounds the gain"

MIN_COLLATE_FRAC = Threshold(
    0.25, "of the fetch time", "Heuristic: below a quarter, loading samples is the place to start."
)


def check(
    budget: Budget,
    loaders: Loaders,
    system: System,
    phases: Phases | None,
    stacks: Stacks | None,
) -> Found | None:
    fed = feed_of(budget, loaders, phases, system)
    if fed is None or fed.blocked_mostly:
        return None
    if fed.from_memory and fed.loader.dataset_len is not None:
        return None  # TD213 is for datasets that can be indexed
    excess = fed.collate - fed.copying
    if fed.collate < MIN_COLLATE_FRAC * fed.wall or excess <= 0:
        return None
    share = fed.collate / fed.wall
    high = fed.gain_of_saving(excess)
    batch = fed.loader.batch_bytes
    return Found(
        summary=(
            f"{fed.loader.collate_name} takes {percent(share)} of the fetch time"
            f" ({duration(fed.collate)} of {duration(fed.wall)} per step). The loop waits for it."
        ),
        evidence=(
            *fed.measures(),
            frac("collate, share of the fetch", share, "fetch"),
            ns("collate", fed.collate, "fetch"),
            *(() if batch is None else (bytes_("batch", batch, "fetch"),)),
        ),
        fix=Fix(
            _advice(fed.loader),
            "review",
            action="Build each field of the batch with one tensor call",
        ),
        gain=Gain(
            high * REPLACED_LOW_FRAC,
            high,
            f"high end: only copying the batch once is left ({duration(fed.copying)}); low end:"
            f" {percent(REPLACED_LOW_FRAC)} of that is saved.",
            DATA_WAIT,
            fetches=True,
        ),
        at=_place(fed, stacks),
    )


def _place(fed: Feed, stacks: Stacks | None) -> Place | None:
    """The most sampled line of the user's collate_fn, else its definition."""
    if fed.loader.collate_at is None:
        return dataset_place(fed.loader)
    mine = collate_place(fed.loader)
    if mine != fed.loader.collate_at:
        return mine
    lines = [
        line.at for line in top_fetch_lines(fed.loader, stacks) if same_function(line.at, mine)
    ]
    return lines[0] if lines else mine


def _advice(loader: Loader) -> str:
    if loader.collate_at is not None and collate_place(loader) != loader.collate_at:
        return (
            f"Give the DataLoader{where(loader.created_at)} a collate_fn that builds each field of"
            f" the batch with one tensor call (torch.stack, pad_sequence, torch.from_numpy), in"
            f" place of {loader.collate_name}."
        )
    if loader.collate_at is not None:
        return (
            f"Build each field of the batch with one tensor call in {loader.collate_name}"
            f"{where(loader.collate_at)} (torch.stack, pad_sequence, torch.from_numpy) instead of a"
            " Python loop over samples."
        )
    whole = "index whole batches (sampler=BatchSampler(...), batch_size=None)"
    if loader.dataset_len is None:  # a stream takes no sampler
        whole = "yield whole batches (batch_size=None)"
    return (
        f"Return one array or tensor per field, no Python numbers, from {loader.dataset_class}"
        f"{where(dataset_place(loader))}. Or {whole}, so that {loader.collate_name} has nothing to"
        " collate."
    )


def fires() -> Evidence:
    slow = loaders(
        load_ns=20e6, load_cpu_ns=20e6, collate_ns=40e6, collate_cpu_ns=40e6, batch_bytes=1e6,
        collate_name="pad_tokens", collate_at=at(30, "pad_tokens"),
    )  # fmt: skip
    step = budget(data_wait_cpu=60, forward=8, backward=10, optimizer=2)
    return Evidence().add(step, slow, system())


def clear() -> Evidence:
    """Stacking 400 MB in a fifth of a second: as long as copying takes."""
    big = loaders(collate_ns=0.19e9, collate_cpu_ns=0.19e9, batch_bytes=400e6)
    return Evidence().add(budget(data_wait_cpu=245, forward=8, backward=10), big, system())
