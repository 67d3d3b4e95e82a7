"""All rows of an embedding table are updated for the few that a step looks up

## What it measures
For each embedding table, in the counted steps: its rows, how many are looked up in a step, whether
its gradient is sparse, and whether other calls use it, too; its part of the parameters' bytes, and
the optimizer's time; in the trace, the time of making its gradient and of freeing it.

## Why it is slow
The gradient of an embedding is dense unless told otherwise: as large as the table, and zero but for
the rows that were looked up. Making it writes the whole table, and so does the optimizer, once for
each of its moments. That time grows with the vocabulary or the number of users, not with the batch.

## What to do
`nn.Embedding(…, sparse=True)`, and an optimizer that takes such gradients: `SparseAdam` instead of
`Adam` for the table, a second optimizer for the rest; `SGD` and `Adagrad` as they are.

## How the gain is computed
From the table's part of the optimizer's time. Low end: less seven times what the rows that are
looked up take of it, and a millisecond, as dear as the sparse update was where it was tried. High
end: less what those rows take of it, and so of what the dense gradient takes of the backward and of
`zero_grad()` in the trace. On a device, where nothing was tried, none is claimed.

## When this advice is wrong
A table that the output layer shares gets a dense gradient from there; this rule sees such uses and
stays silent. With Adam's moments, rows that are not looked up rest instead of drifting on: results
differ. `weight_decay` and `clip_grad_norm_` do not take sparse
gradients, nor do `fused=True` and DistributedDataParallel over NCCL.
"""

from __future__ import annotations

from collections.abc import Sequence

from tdiag.evidence.device import HostOps, Kernels
from tdiag.evidence.kinds import Budget, Optimizer, Optimizers, Phases
from tdiag.evidence.store import Evidence
from tdiag.evidence.training import ClipCalls, Ddp, EmbeddingTables, Layers, Table
from tdiag.model.diagnosis import Fix
from tdiag.rules.base import Found, Gain, held, where
from tdiag.rules.examples import MB, at, budget, optimizers
from tdiag.rules.measures import bytes_, count, frac, ns
from tdiag.rules.thresholds import NOTICEABLE_FRAC
from tdiag.units import duration, percent

CODE = "TD611"
NAME = "embedding-updated-whole"
CLASS = "compute"

# Optimizers whose work sparse gradients can take on, and what takes them in their stead.
TAKES_SPARSE = {"Adam": "SparseAdam", "AdamW": "SparseAdam", "SGD": "SGD", "Adagrad": "Adagrad"}
# A row's sparse update against its dense one, one core, torch 2.13: SparseAdam 2.2 times (12,000 of
# 50,000 rows of 64 numbers) to 3 times (5,000 of 10,000), SGD 7 times.
SPARSE_ROW_FACTOR = 7.0
# What SparseAdam takes whatever the rows: 0.9 to 1.1 ms on a slow core in that trial.
SPARSE_FIXED_NS = 1_000_000
# The op that makes the dense gradient, as torch names it.
DENSE_BACKWARD = "aten::embedding_dense_backward"
# zero_grad() stands before the forward pass, before the backward, or after the optimizer.
HELD_IN = ("optimizer", "backward", "prepare", "loss", "other")


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
    largest = max(whole, key=_bytes)
    share = min(1.0, sum(map(_bytes, whole)) / every)
    touched = sum(x.looked_up for x in whole) / sum(x.rows for x in whole)
    updating = share * _updating(budget, kernels)
    making = _making_frac(host_ops) * held(budget, "backward")
    freeing = share * _freeing(host_ops, phases)
    low = updating * (1 - SPARSE_ROW_FACTOR * touched) - SPARSE_FIXED_NS
    high = (updating + making + freeing) * (1 - touched)
    if low <= 0 or updating < NOTICEABLE_FRAC * budget.step_ns:
        return None
    others = f" (and {len(whole) - 1} more such)" if whole[1:] else ""
    return Found(
        summary=(
            f"A step looks up {largest.looked_up:.0f} of the {largest.rows} rows of"
            f" {_name(largest)}{where(largest.at)}{others}, but gradient and optimizer pass over"
            f" all of them: {duration(updating)} a step in the optimizer"
            f" ({percent(updating / budget.step_ns)})."
        ),
        evidence=(
            count("rows of the table", largest.rows, "ops"),
            count("rows looked up", largest.looked_up, "ops", "per_step"),
            bytes_("the table", largest.bytes, "ops"),
            frac("such tables, of all parameters", share, "probe"),
            ns("their part of the optimizer's time", updating, "budget"),
            *((ns("making their dense gradients", making, "trace"),) if making else ()),
            *((ns("freeing them in zero_grad()", freeing, "trace"),) if freeing else ()),
        ),
        fix=Fix(_advice(largest, taking[0], clips), "review"),
        gain=None if budget.has_device else _gain(low, high),
        at=largest.at,
    )


def _gain(low: float, high: float) -> Gain:
    why = (
        "low end: rows that are looked up cost seven times as much, and a millisecond more; high"
        " end: no more than before, and no dense gradient is made or freed."
    )
    return Gain(low, high, why, HELD_IN)


def _updating(budget: Budget, kernels: Kernels | None) -> float:
    """The optimizer's time, ns per step; with a device, that of its kernels."""
    if not budget.has_device:
        return held(budget, "optimizer")
    families = kernels.families if kernels else ()
    return sum(family.device_ns for family in families if family.family == "optimizer")


def _few(table: Table) -> bool:
    """So few rows are looked up that a sparse update is cheaper at any rate."""
    return 0 < SPARSE_ROW_FACTOR * table.looked_up < table.rows


def _name(table: Table) -> str:
    return table.name or "an embedding table"


def _bytes(table: Table) -> int:
    return table.bytes


def _making_frac(host_ops: HostOps | None) -> float:
    """What making dense gradients takes of the backward, as the trace saw it."""
    ops = host_ops.ops if host_ops else ()
    making = sum(op.total_ns for op in ops if op.name == DENSE_BACKWARD)
    whole = sum(host_ops.backward_of.values()) if host_ops else 0.0
    return min(1.0, making / whole) if whole else 0.0


def _freeing(host_ops: HostOps | None, phases: Phases | None) -> float:
    """Of the clean steps, what zero_grad() takes by the trace, ns per step."""
    if host_ops is None or phases is None:
        return 0.0
    parts = host_ops.zero_grad_frac.items()
    return sum(frac * phases.wall_ns.get(phase, 0.0) for phase, frac in parts)


def _advice(table: Table, optimizer: Optimizer, clips: ClipCalls | None) -> str:
    other = TAKES_SPARSE[optimizer.name]
    of_its_own = (
        f"torch.optim.{other} for it, {optimizer.name}{where(optimizer.created_at)} for the rest"
        if other != optimizer.name
        else f"{optimizer.name}{where(optimizer.created_at)} takes such gradients"
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
    without = (
        f" It cannot have {_listed(lost)}: leave that to the other parameters." if lost else ""
    )
    return (
        f"nn.Embedding(…, sparse=True) for {_name(table)}{where(table.at)}; {of_its_own}.{without}"
    )


def _listed(names: Sequence[str]) -> str:
    return " and ".join((", ".join(names[:-1]), names[-1])) if len(names) > 1 else names[0]


def fires() -> Evidence:
    """A million users, of whom a batch holds a thousand."""
    return _training(rows=1_000_000)


def clear() -> Evidence:
    """A small vocabulary, most of which is in every batch."""
    return _training(rows=4_000)


def _training(rows: int) -> Evidence:
    table = Table(
        name="users", at=at(14, "forward"), rows=rows, bytes=rows * 128, looked_up=1024.0,
        sparse=False, elsewhere=False,
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
