"""A table is indexed for every sample

## What it measures
Samples of the fetch whose line calls into a table library (pandas, polars, pyarrow, datasets).

## Why it is slow
Taking a row of a DataFrame looks up labels, checks dtypes and builds a Series in Python: about a
hundred microseconds, while a tensor takes three. A table of Python objects also grows in each
worker as reference counts are written (copy-on-write).

## What to do
Convert each needed column to a tensor once, in the dataset's constructor, and index the tensors.

## How the gain is computed
From the time sampled during fetches. Low end: 85 % of that in the library. High end: all
of the functions that index the table, because making tensors from its rows goes as well, except the
time of indexing a tensor.

## When this advice is wrong
Columns that do not fit into memory as tensors, or text that is tokenised per sample: convert the
other columns, and tokenise once.
"""

from __future__ import annotations

from msgspec.structs import replace

from tdiag.evidence.feeding import Loaders
from tdiag.evidence.machine import System
from tdiag.evidence.sampled import Stacks
from tdiag.evidence.steps import Budget, Phases
from tdiag.evidence.store import Evidence
from tdiag.model.diagnosis import Fix
from tdiag.model.threshold import Threshold
from tdiag.rules.base import (
    DATA_WAIT,
    Abstain,
    Found,
    Gain,
    frac,
    known_to,
    ns,
    sampling_range,
    text,
    where,
)
from tdiag.rules.examples import budget, loaders, stack, stacks, system
from tdiag.rules.feed import feed_of
from tdiag.rules.fetch_lines import fetch_lines, fetch_samples
from tdiag.rules.thresholds import REPLACED_LOW_FRAC
from tdiag.units import duration, percent

CODE = "TD210"
NAME = "table-indexed-per-sample"
CLASS = "cpu"
UNTRIED = "needs another `__getitem__`; `loader.cache` bounds the gain"

# Folders of the packages whose tables are indexed by row in Python.
TABLES = ("pandas", "polars", "pyarrow", "datasets")
_INDEXED = "# in __getitem__:\nx, y = self.x[index], self.y[index]"
CONVERSIONS = {
    "pandas": "# in the constructor:\n"
    'self.x = torch.from_numpy(table[columns].to_numpy(dtype="float32"))\n'
    f"self.y = torch.from_numpy(table[label].to_numpy())\n{_INDEXED}",
    "polars": "# in the constructor:\n"
    "self.x = table.select(columns).to_torch(dtype=polars.Float32)\n"
    f"self.y = table[label].to_torch()\n{_INDEXED}",
    "pyarrow": "# in the constructor:\n"
    "self.x = torch.stack([torch.tensor(table[c].to_numpy()) for c in columns], 1)\n"
    f"self.y = torch.tensor(table[label].to_numpy())\n{_INDEXED}",
    "datasets": '# in the constructor:\nwhole = table.with_format("torch")[:]\n'
    "self.x = torch.stack([whole[c] for c in columns], 1)\n"
    f"self.y = whole[label]\n{_INDEXED}",
}
TENSOR_SPEEDUP = Threshold(
    27,
    "times",
    "Measured with pandas 3.1, torch 2.13 and 20 columns: a row of a DataFrame and its label"
    " took 86 to 106 µs, the same from two tensors 3.2 µs; on another machine 17 to 20 times"
    " (benchmarks/rule_constants.py td210).",
)


def check(
    budget: Budget, loaders: Loaders, system: System, stacks: Stacks, phases: Phases | None
) -> Found | None:
    fed = feed_of(budget, loaders, phases, system)
    if fed is None:
        return None
    lines = fetch_lines(fed.loader, stacks)
    if not lines:
        raise Abstain("the sampler took no sample during a fetch")
    tables = [line for line in lines if line.library in TABLES]
    if not tables:
        return None
    share = min(1.0, sum(line.self_frac for line in tables))
    spent, at = share * fed.wall, tables[0].at
    seen = fetch_samples(fed, stacks)
    functions = {(line.at.file, line.at.function) for line in tables}
    around = [line for line in lines if (line.at.file, line.at.function) in functions]
    least, _ = known_to(share, seen)
    _, most = known_to(min(1.0, sum(line.self_frac for line in around)), seen)
    per_sample = spent / fed.batches / (fed.loader.batch_size or 1)
    name = tables[0].library
    return Found(
        summary=(
            f"Indexing {name}{where(at)} takes {percent(share)} of the fetch time:"
            f" {duration(per_sample)} {'a sample' if fed.loader.batch_size else 'a batch'}."
        ),
        evidence=(
            *(
                frac(f"fetch samples{where(line.at)}", line.self_frac, "sample")
                for line in tables[:3]
            ),
            text("library", name, "sample"),
            ns("in it, per step", spent, "sample"),
        ),
        fix=Fix(
            f"Convert the columns to tensors once, in the constructor of"
            f" {fed.loader.dataset_class}. Index the tensors{where(at)} instead of the {name}"
            " table.",
            "safe",
            action="Convert the table to tensors once",
            code=CONVERSIONS[name],
        ),
        gain=Gain(
            fed.gain_of_saving(fed.wall * least * REPLACED_LOW_FRAC),
            fed.gain_of_saving(fed.wall * most * (1 - 1 / TENSOR_SPEEDUP)),
            f"high end: the functions around it index a tensor in 1/{TENSOR_SPEEDUP} of the time;"
            f" low end: {percent(REPLACED_LOW_FRAC)} is saved."
            f" {sampling_range(seen, least, most)}.",
            DATA_WAIT,
            fetches=True,
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
