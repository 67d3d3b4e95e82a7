"""A table is indexed for every sample

## What it measures
Samples of the fetch whose line calls into a library for tables (pandas, polars, pyarrow, datasets).

## Why it is slow
Taking a row of a DataFrame looks up labels, checks dtypes and builds a Series, all in Python: about
a hundred microseconds for what a tensor gives in three. A table of Python objects in every worker
also grows in memory as their reference counts are written (copy-on-write).

## What to do
Convert each column that is needed to a tensor once, in the dataset's constructor, and index those.

## How the gain is computed
From the time sampled in the library during fetches. High end: all of it but what a tensor's index
takes; low end: half, if part of it is work that stays (parsing, joining).

## When this advice is wrong
Columns that do not fit into memory as tensors, or hold text that is only tokenised when a sample is
asked for: convert the rest, and tokenise once.
"""

from __future__ import annotations

from msgspec.structs import replace

from tdiag.evidence.data import Loaders
from tdiag.evidence.kinds import Budget, Phases, Stacks, System
from tdiag.evidence.store import Evidence
from tdiag.model.diagnosis import Fix
from tdiag.rules.base import DATA_WAIT, Abstain, Found, Gain, where
from tdiag.rules.examples import budget, loaders, stack, stacks, system
from tdiag.rules.feed import feed_of
from tdiag.rules.fetch_lines import fetch_samples, top_fetch_lines
from tdiag.rules.measures import frac, ns, text
from tdiag.rules.samples import known_to
from tdiag.units import duration, percent

CODE = "TD210"
NAME = "table-indexed-per-sample"
CLASS = "cpu"

# Packages whose tables are indexed by row in Python, as their folders are called.
TABLES = ("pandas", "polars", "pyarrow", "datasets")
# A row of a DataFrame and its label took 86 to 106 µs, the same of two tensors 3.2 µs (pandas 3.1,
# torch 2.13, 20 columns): 27 times and more.
TENSOR_WINS = 27.0
# Half of the time in the library may be work that stays; ours, to keep the low end modest.
LOW_FRAC = 0.5


def check(
    budget: Budget, loaders: Loaders, system: System, stacks: Stacks, phases: Phases | None
) -> Found | None:
    fed = feed_of(budget, loaders, phases, system)
    if fed is None:
        return None
    lines = top_fetch_lines(fed, stacks)
    if not lines:
        raise Abstain("no sample fell into a fetch")
    tables = [line for line in lines if line.library in TABLES]
    if not tables:
        return None
    share = min(1.0, sum(line.self_frac for line in tables))
    spent, at = share * fed.wall, tables[0].at
    seen = fetch_samples(fed, stacks)
    least, most = known_to(share, seen)
    per_sample = spent / fed.batches / (fed.loader.batch_size or 1)
    name = tables[0].library
    return Found(
        summary=(
            f"{percent(share)} of the fetch time goes to {name}{where(at)}: {duration(per_sample)}"
            f" {'a sample' if fed.loader.batch_size else 'a batch'}."
        ),
        evidence=(
            *(frac(f"fetch samples{where(line.at)}", line.self_frac, "sample") for line in tables),
            text("library", name, "sample"),
            ns("in it, per step", spent, "sample"),
        ),
        fix=Fix(
            f"In the constructor of {fed.loader.dataset_class}, once: x ="
            " torch.from_numpy(table[columns].to_numpy(dtype='float32')), and the labels alike;"
            f" index x{where(at)} instead of the {name} table.",
            "safe",
        ),
        gain=Gain(
            fed.gain_of_saving(fed.wall * least * LOW_FRAC),
            fed.gain_of_saving(fed.wall * most * (1 - 1 / TENSOR_WINS)),
            f"high end: a tensor's index takes 1/{TENSOR_WINS:.0f} of the time; low end: half of"
            f" it is work that stays; {seen:,} samples put the share between {percent(least)} and"
            f" {percent(most)}.",
            DATA_WAIT,
        ),
        at=at,
    )


def fires() -> Evidence:
    rows = stack(18, 0.6, "get_loc (indexes/base.py)", "data_wait")
    other = stack(21, 0.15, "sub (python3.11/re.py)", "data_wait")
    sampled = stacks(training=(replace(rows, library="pandas"), other))
    step = budget(data_wait_cpu=60, forward=20)
    return Evidence().add(step, loaders(dataset_class="Clicks"), system(), sampled)


def clear() -> Evidence:
    """The same time, spent decoding images."""
    decoding = stack(18, 0.75, "decode (PIL/Image.py)", "data_wait")
    sampled = stacks(training=(replace(decoding, library="PIL"),))
    return Evidence().add(budget(data_wait_cpu=60, forward=20), loaders(), system(), sampled)
