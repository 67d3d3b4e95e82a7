"""All rows of an embedding table are updated for the few that a step looks up

## What it measures
For each embedding table in the counted steps: its rows, the rows looked up per step, whether its
gradient is sparse, and whether other calls use it; its share of the parameters' bytes and of the
optimizer's time. From the trace: the time of making its gradient and of freeing it.

## Why it is slow
By default the gradient of an embedding is dense: as large as the table, and zero except in the rows
looked up. Making it writes the whole table, and the optimizer does so again for each of its
moments. This time grows with the vocabulary or the number of users, not with the batch.

## What to do
Use `nn.Embedding(..., sparse=True)`, or `nn.EmbeddingBag` likewise, with an optimizer that accepts
sparse gradients: `SparseAdam` for the table instead of `Adam`, with a second optimizer for the
rest; `SGD` and `Adagrad` as they are.

## How the gain is computed
From the table's share of the optimizer's time, and the time of making its dense gradient. Low end:
minus what a sparse update cost at most in measurements: seven times the share of the rows looked
up, 2.2 times that of their further lookups, and a millisecond. High end: minus the share of the
rows looked up, plus the time of freeing the dense gradient. On a device nothing was measured, and
no gain is claimed.

## When this advice is wrong
A table shared with the output layer gets a dense gradient there; the rule detects such uses and
stays silent. With Adam, rows that are not looked up do not move, while a dense update still moves
them by their moments, so results differ. `weight_decay`, `clip_grad_norm_`, `fused=True` and
DistributedDataParallel over NCCL do not accept sparse gradients.
"""

from __future__ import annotations

from tdiag.evidence.device import Kernels
from tdiag.evidence.ranks import Ddp
from tdiag.evidence.steps import Budget, Phases
from tdiag.evidence.store import Evidence
from tdiag.evidence.torch_ops import HostOps
from tdiag.evidence.training import (
    ClipCalls,
    EmbeddingTable,
    EmbeddingTables,
    Layers,
    Optimizer,
    Optimizers,
)
from tdiag.model.diagnosis import Fix
from tdiag.model.threshold import NOTICEABLE_FRAC, Threshold
from tdiag.rules.base import Found, Gain, bytes_, count, frac, held, ns, where
from tdiag.rules.examples import MB, at, budget, optimizers
from tdiag.rules.zero_grad import ZERO_GRAD_IN, zero_grad_ns
from tdiag.units import count as counted
from tdiag.units import per_step

CODE = "TD611"
NAME = "embedding-updated-whole"
CLASS = "compute"
UNTRIED = "the table needs its own optimizer"
AFTER = {"TD222": "a table of the rows in use is updated whole in no time"}

# Optimizer → the optimizer that accepts sparse gradients instead.
TAKES_SPARSE = {"Adam": "SparseAdam", "AdamW": "SparseAdam", "SGD": "SGD", "Adagrad": "Adagrad"}
SPARSE_ROW_FACTOR = Threshold(
    7.0,
    "times a row's dense update",
    "Measured, sparse against dense update of a row, one core, torch 2.13: SparseAdam 2.2 times"
    " (12,000 of 50,000 rows of 64 numbers) to 3 times (5,000 of 10,000), SGD 7 times,"
    " Adagrad 5 to 7 (benchmarks/rule_constants.py td611).",
)
SPARSE_FIXED_NS = Threshold(
    1_000_000,
    "ns",
    "The same measurement: SparseAdam took 0.9 to 1.1 ms however few the rows, on another"
    " machine 0.4 (benchmarks/rule_constants.py td611).",
)
SPARSE_AGAIN_FACTOR = Threshold(
    2.2,
    "times a row's dense update, for each further time that a step looks the row up",
    "The same measurement, 2,000 of 50,000 rows looked up 4 and 16 times: SparseAdam 0.5 to 0.6"
    " times, SGD 1.0 to 2.1, Adagrad 1.6 to 2.1 (benchmarks/rule_constants.py td611).",
)
# The ops that make the dense gradient, by torch's names.
DENSE_BACKWARD = ("aten::embedding_dense_backward", "aten::_embedding_bag_dense_backward")


def check(
    budget: Budget,
    tables: EmbeddingTables,
    layers: Layers,
    optimizers: Optimizers,
    clips: ClipCalls | None,
    ddp: Ddp | None,
    phases: Phases | None,
    host_ops: HostOps | None,
    kernels: Kernels | None,
) -> Found | None:
    whole = [x for x in tables.tables if not (x.sparse or x.elsewhere) and _few(x)]
    taking = [x for x in optimizers.optimizers if x.name in TAKES_SPARSE]
    every = sum(layers.dtypes.values())
    if not whole or not taking or not every or ddp is not None:
        return None
    largest = max(whole, key=lambda x: x.bytes)
    share = min(1.0, sum(x.bytes for x in whole) / every)
    rows = sum(x.rows for x in whole)
    touched = sum(x.distinct for x in whole) / rows
    costs = sum(map(_cost_in_rows, whole)) / rows
    updating = share * _updating(budget, kernels)
    dense = sum(x.bytes for x in tables.tables if not x.sparse)
    mine = sum(x.bytes for x in whole) / dense
    making = mine * _making_frac(host_ops) * held(budget, "backward")
    freeing = share * zero_grad_ns(host_ops, phases)
    low = (updating + making) * (1 - costs) - SPARSE_FIXED_NS
    high = (updating + making + freeing) * (1 - touched)
    if low <= 0 or updating < NOTICEABLE_FRAC * budget.step_ns:
        return None
    others = f" (and {len(whole) - 1} more like it)" if whole[1:] else ""
    return Found(
        summary=(
            f"A step looks up {counted(largest.distinct)} of the {counted(largest.rows)} rows of"
            f" {_name(largest)}{where(largest.at)}{others}, but the optimizer updates all of them:"
            f" {per_step(updating, budget.step_ns)}."
        ),
        evidence=(
            count("rows of the table", largest.rows, "ops"),
            count("rows looked up", largest.distinct, "ops", "per_step"),
            count("lookups", largest.looked_up, "ops", "per_step"),
            bytes_("the table", largest.bytes, "ops"),
            frac("such tables ÷ all parameters", share, "probe"),
            ns("their part of the optimizer's time", updating, "budget"),
            *((ns("making their dense gradients", making, "trace"),) if making else ()),
            *((ns("freeing them in zero_grad()", freeing, "trace"),) if freeing else ()),
        ),
        fix=_fix(largest, taking[0], clips),
        gain=None if budget.has_device else _gain(low, high),
        at=largest.at,
    )


def _gain(low: float, high: float) -> Gain:
    why = (
        "no dense gradient is made; low end: a sparse update of a row costs seven dense ones,"
        f" {SPARSE_AGAIN_FACTOR} for each further lookup of it, and 1 ms in total; high end: it"
        " costs one, and no dense gradient is freed."
    )
    return Gain(low, high, why, ZERO_GRAD_IN)


def _updating(budget: Budget, kernels: Kernels | None) -> float:
    """The optimizer's time, ns per step; with a device, that of its kernels."""
    if not budget.has_device:
        return held(budget, "optimizer")
    families = kernels.families if kernels else ()
    return sum(family.device_ns for family in families if family.family == "optimizer")


def _few(table: EmbeddingTable) -> bool:
    """Whether so few rows are looked up that a sparse update is cheaper in any case."""
    return 0 < _cost_in_rows(table) < table.rows


def _cost_in_rows(table: EmbeddingTable) -> float:
    """The most that a sparse update of what a step looks up costs: as much as the dense update of
    so many rows."""
    again = table.looked_up - table.distinct
    return SPARSE_ROW_FACTOR * table.distinct + SPARSE_AGAIN_FACTOR * again


def _name(table: EmbeddingTable) -> str:
    return table.name or "an embedding table"


def _making_frac(host_ops: HostOps | None) -> float:
    """Making dense gradients ÷ backward, in the trace."""
    ops = host_ops.ops if host_ops else ()
    making = sum(op.total_ns for op in ops if op.name in DENSE_BACKWARD)
    whole = sum(host_ops.backward_of.values()) if host_ops else 0.0
    return min(1.0, making / whole) if whole else 0.0


def _fix(table: EmbeddingTable, optimizer: Optimizer, clips: ClipCalls | None) -> Fix:
    other = TAKES_SPARSE[optimizer.name]
    own = f"keep {optimizer.name}{where(optimizer.created_at)}, which accepts such gradients"
    code = ""
    if other != optimizer.name:
        own = f"use {other} for it and {optimizer.name}{where(optimizer.created_at)} for the rest"
        if table.name:
            code = (
                f'table = model.get_submodule("{table.name}").weight\n'
                "rest = [p for p in model.parameters() if p is not table]\n"
                f"optimizers = torch.optim.{other}([table]), torch.optim.{optimizer.name}(rest)"
            )
    lost = [
        text
        for text, there in (
            ("weight_decay", optimizer.config.get("weight_decay")),
            ("fused=True", optimizer.config.get("fused")),
            ("gradient clipping", clips is not None and clips.clips),
        )
        if there
    ]
    limits = f" The table cannot have {', '.join(lost)}." if lost else ""
    return Fix(
        f"Create {_name(table)}, which is looked up{where(table.at)}, with sparse=True, and"
        f" {own}.{limits}",
        "review",
        action="Use sparse gradients for the embedding table",
        code=code,
    )


def fires() -> Evidence:
    """A million users, of whom a batch holds a thousand."""
    return _training(rows=1_000_000)


def clear() -> Evidence:
    """A small vocabulary, most of which is in every batch."""
    return _training(rows=4_000)


def _training(rows: int) -> Evidence:
    table = EmbeddingTable(
        name="users", at=at(14, "forward"), rows=rows, bytes=rows * 128, looked_up=1024.0,
        distinct=1024.0,        sparse=False, elsewhere=False,
    )  # fmt: skip
    layers = Layers(
        classes={"Embedding": 1, "Linear": 2}, mode_dependent=(),
        dtypes={"float32": table.bytes + 2 * MB}, conv_bytes=0, channels_last_bytes=0,
        bias_before_norm=(), out_of_place=(),
    )  # fmt: skip
    step = budget(forward=2, backward=20, optimizer=60)
    return Evidence().add(
        step, EmbeddingTables(tables=(table,)), layers, optimizers("Adam", weight_decay=0.01)
    )
