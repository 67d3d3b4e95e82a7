"""The vocabulary is larger than the data's

## What it measures
The largest row number that the counted steps look up in an embedding table, against the table's
rows; and the traced time of the operations on tensors with as many rows: the output layer that
scores each of them, the loss over these scores, the gradients and the update.

## Why it is slow
A model made from a configuration keeps its default vocabulary (BERT 30,522, GPT-2 50,257 entries)
unless it is told the tokenizer's. Every position is scored against every entry, and the optimizer
updates every row, although most of them never occur.

## What to do
Give the configuration the size of the vocabulary in use: `vocab_size=len(tokenizer)`, for example.
A multiple of 64 is faster on some devices.

## How the gain is computed
The time of these operations shrinks in proportion to the rows. Low end: their own traced time. High
end: their share of all traced operations' time × the time of forward, loss, backward and optimizer,
because what surrounds them (allocating their results, the update) shrinks as well.

## When this advice is wrong
The vocabulary of a pretrained model must keep its size, and other data may use the other entries.
The counted steps are few: rare entries with high numbers may have been missing in them.
"""

from __future__ import annotations

from msgspec.structs import replace

from tdiag.evidence.device import DeviceTime
from tdiag.evidence.roofline import OpWork, Work
from tdiag.evidence.steps import Budget, TracedSteps
from tdiag.evidence.store import Evidence
from tdiag.evidence.training import EmbeddingTable, EmbeddingTables
from tdiag.model.diagnosis import Fix
from tdiag.model.threshold import NOTICEABLE_FRAC, Threshold
from tdiag.rules.base import MODEL_PHASES, Found, Gain, count, held, ns, where
from tdiag.rules.device_waits import busy_scale
from tdiag.rules.examples import MS, at, budget, roofline
from tdiag.units import count as counted
from tdiag.units import per_step

CODE = "TD222"
NAME = "vocabulary-larger-than-data"
CLASS = "compute"
UNTRIED = "the model must be made again with the smaller vocabulary"

USED_FRAC = Threshold(
    0.25,
    "of the rows",
    "Heuristic: in the texts that a vocabulary was made for, some token of a batch is from its last"
    " three quarters. Numbers up to a quarter in all counted steps mean another vocabulary.",
)
MIN_ROWS = Threshold(
    1_000,
    "rows",
    "Heuristic: other dimensions of a model may be as large as a smaller table, so that the"
    " operations on its rows cannot be told by their shapes.",
)


def check(
    budget: Budget,
    tables: EmbeddingTables,
    work: Work,
    traced: TracedSteps,
    device: DeviceTime | None,
) -> Found | None:
    large = [x for x in tables.tables if _used(x) <= USED_FRAC * x.rows and x.rows >= MIN_ROWS]
    if not large:
        return None
    table = max(large, key=lambda x: x.bytes)
    scoring = [op for op in work.ops if any(table.rows in dims for dims in op.dims)]
    clean = budget.step_ns / traced.mean_ns
    if budget.has_device and device is not None:
        clean = busy_scale(budget, device)
    spent = sum(op.spent_ns for op in scoring) * clean
    if spent < NOTICEABLE_FRAC * budget.step_ns:
        return None
    unused = 1 - _used(table) / table.rows
    every = sum(op.spent_ns for op in work.ops)
    computing = held(budget, "compute") if budget.has_device else held(budget, *MODEL_PHASES)
    most = max(spent, computing * spent / (every * clean))
    name = table.name or "An embedding table"
    return Found(
        summary=(
            f"{name}{where(table.at)} has {counted(table.rows)} rows, and the data uses"
            f" {counted(_used(table))} of them. Operations on all rows take"
            f" {per_step(spent, budget.step_ns)}."
        ),
        evidence=(
            count("rows of the table", table.rows, "ops"),
            count("largest row number looked up", _used(table) - 1, "ops"),
            ns("operations on as many rows", spent, "trace"),
            ns("all traced operations", every * clean, "trace"),
        ),
        fix=Fix(
            f"Make the model whose table is looked up{where(table.at)} with the size of the"
            f" vocabulary in use, len(tokenizer) for example: {counted(_used(table))} entries in"
            f" the counted steps, not {counted(table.rows)}.",
            "review",
            action="Make the model with the vocabulary that the data uses",
            code="config.vocab_size = len(tokenizer)  # before the model is made",
        ),
        gain=Gain(
            spent * unused,
            most * unused,
            "low end: these operations' own time shrinks with the rows; high end: so does what"
            " surrounds them.",
            ("compute",) if budget.has_device else MODEL_PHASES,
        ),
        at=table.at,
    )


def _used(table: EmbeddingTable) -> int:
    """Rows up to the last one that was looked up; all if that was not recorded."""
    return table.rows if table.highest is None else table.highest + 1


def fires() -> Evidence:
    return _scored(highest=30)


def clear() -> Evidence:
    """Texts of a real tokenizer."""
    return _scored(highest=27_000)


def _scored(highest: int) -> Evidence:
    table = EmbeddingTable(
        name="Bert.embeddings", at=at(20, "forward"), rows=30_522, bytes=1 << 24, looked_up=2048.0,
        distinct=2048.0, sparse=False, elsewhere=True, highest=highest,
    )  # fmt: skip
    _, work = roofline(best_ms=20)
    product: OpWork = replace(
        work.ops[0], dims=((2048, 128), (128, 30_522)), count=3.0, host_ns=30 * MS
    )
    traced = TracedSteps(
        durations_ns=(60 * MS,) * 5, mean_ns=60 * MS, count=5, found_by="ProfilerStep"
    )
    step = budget(forward=20, loss=5, backward=25, optimizer=5)
    tables, scored = EmbeddingTables(tables=(table,)), replace(work, ops=(product,))
    return Evidence().add(step, tables, scored, traced)
