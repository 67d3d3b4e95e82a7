"""Compiled code is recompiled during training

## What it measures
Functions that torch.compile recompiled in the clean window because a guard failed, the time this
took, and the guard that failed most often. Functions that dynamo stopped compiling after too many
versions.

## Why it is slow
Compiled code is valid for the shapes, types and values it was compiled for. Anything else is
recompiled, which takes seconds; after eight versions the function runs as plain Python.

## What to do
Keep shapes fixed: pad to a few lengths, `drop_last=True`. Or mark varying sizes:
`torch.compile(..., dynamic=True)`, `torch._dynamo.mark_dynamic`. Put numbers that change every step
into tensors.

## How the gain is computed
High end: the time spent compiling in the clean steps. Low end: nothing, if recompiling ends once
every shape was seen.

## When this advice is wrong
In the first epoch of a long run, shapes are new that will repeat later. Dynamic shapes make kernels
somewhat slower than fixed ones.
"""

from __future__ import annotations

from tdiag.evidence.compiling import Compiles
from tdiag.evidence.steps import Budget
from tdiag.evidence.store import Evidence
from tdiag.model.compiled import Recompiled
from tdiag.model.diagnosis import Fix
from tdiag.model.place import Place
from tdiag.probe.wire import is_user_file
from tdiag.rules.base import Found, Gain, count, ns, text, where
from tdiag.rules.examples import MS, at, budget
from tdiag.units import count as counted
from tdiag.units import per_step

CODE = "TD708"
NAME = "compiled-again"
CLASS = "overhead"

# The host compiles while it runs the model, forward or backward; with a device, the device idles
# during that time.
COMPILING = ("forward", "loss", "backward", "launch", "other")


# In the guards of torch 2.1 to 2.13 on sizes, strides and the relations between them.
OF_A_SHAPE = ("size mismatch", "stride mismatch", ".size()", ".stride()", ".shape", "rank mismatch")


def check(budget: Budget, compiles: Compiles | None) -> Found | None:
    if compiles is None:  # nothing was compiled
        return None
    if not compiles.clean_recompiles and not compiles.limit_hit:
        return None
    worst = max(compiles.reasons, key=lambda reason: reason.times, default=None)
    at = worst.at if worst and worst.at and is_user_file(worst.at.file) else None
    return Found(
        summary=_summary(budget, compiles, at),
        evidence=(
            count("recompilations", compiles.clean_recompiles, "probe", "per_step"),
            ns("compiling, per step", compiles.clean_ns, "probe"),
            count("recompilations, whole run", compiles.recompiles, "probe"),
            ns("compiling, whole run", compiles.total_ns, "probe"),
            *((text("guard that fails most", worst.reason, "probe"),) if worst else ()),
        ),
        fix=_fix(worst, at),
        gain=None if not compiles.clean_ns else Gain(
            0.0,
            compiles.clean_ns,
            "high end: no step recompiles; low end: nothing, if all shapes are soon compiled.",
            COMPILING,
        ),
        at=at,
    )  # fmt: skip


def _fix(worst: Recompiled | None, at: Place | None) -> Fix:
    because = f" The guard that fails: {worst.reason.rstrip('.')}." if worst else ""
    if worst is None or any(word in worst.reason for word in OF_A_SHAPE):
        return Fix(
            f"Keep the shapes of the compiled code{where(at)} fixed (pad to a few lengths, use"
            " drop_last=True), or compile it with dynamic shapes: dynamic=True, or"
            f" torch._dynamo.mark_dynamic(tensor, dimension) on its inputs.{because}",
            "review",
            "torch.compile_dynamic",
            action="Compile with dynamic shapes or pad to fixed ones",
            code="model = torch.compile(model, dynamic=True)",
        )
    return Fix(
        f"Do not change what the code compiled{where(at)} treats as constant: pass a number that"
        f" changes as a tensor, and keep modes, types and objects the same.{because}",
        "review",
        action="Keep what the compiled code treats as constant",
        code="rate = torch.tensor(rate)  # compiled once for every value",
    )


def _summary(budget: Budget, compiles: Compiles, at: Place | None) -> str:
    given_up = (
        f"Dynamo stopped compiling a function{where(at)} after too many versions: it runs as plain"
        " Python."
    )
    if not compiles.clean_recompiles:
        return given_up
    again = (
        f"Functions are recompiled {counted(compiles.clean_recompiles)} times per step{where(at)}:"
        f" {per_step(compiles.clean_ns, budget.step_ns)}."
    )
    return f"{again} {given_up}" if compiles.limit_hit else again


def fires() -> Evidence:
    """Sentences of any length, padded to the longest of the batch."""
    failed = Recompiled(
        at=at(33, "forward"), reason="tensor 'tokens' size mismatch at index 1", times=7
    )
    again = Compiles(
        frames=9, recompiles=8, total_ns=31_000 * MS, clean_recompiles=0.05,
        clean_ns=60.0 * MS, reasons=(failed,), limit_hit=False,
    )  # fmt: skip
    return Evidence().add(budget(forward=90, backward=50, optimizer=10), again)


def clear() -> Evidence:
    """Compiled once, in the first step."""
    once = Compiles(
        frames=2, recompiles=0, total_ns=9_000 * MS, clean_recompiles=0.0, clean_ns=0.0,
        reasons=(), limit_hit=False,
    )  # fmt: skip
    return Evidence().add(budget(forward=30, backward=50, optimizer=10), once)
