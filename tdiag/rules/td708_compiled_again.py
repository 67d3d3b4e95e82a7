"""Compiled code is compiled again and again

## What it measures
Functions that torch.compile compiled another time in the clean window because a guard failed, the
time it took, and the guard that failed most often. Functions that were given up after too many
versions.

## Why it is slow
A compiled function is for the shapes, types and values that it saw. What differs is compiled again,
for seconds, and after eight versions the function runs as plain Python from then on.

## What to do
Give it one shape: pad to a few fixed lengths, `drop_last=True`; or say that a size varies:
`torch.compile(..., dynamic=True)`, `torch._dynamo.mark_dynamic`. Numbers that change in each step
belong into tensors.

## How the gain is computed
High end: the time spent compiling in the clean steps. Low end: nothing, if it ends by itself once
every shape was seen.

## When this advice is wrong
The first epoch of a long run meets shapes that never come back as new ones. Dynamic shapes make
kernels somewhat slower than fixed ones.
"""

from __future__ import annotations

from tdiag.evidence.kinds import Budget
from tdiag.evidence.store import Evidence
from tdiag.evidence.training import Compiles, Recompiled
from tdiag.model.diagnosis import Fix
from tdiag.model.place import Place
from tdiag.probe.wire import is_user_file
from tdiag.rules.base import Found, Gain, where
from tdiag.rules.examples import MS, at, budget
from tdiag.rules.measures import count, ns, text
from tdiag.units import count as counted
from tdiag.units import duration, percent

CODE = "TD708"
NAME = "compiled-again"
CLASS = "overhead"

# Where the host compiles: while it runs the model, forward or backward; with a device, which idles
# meanwhile, what the host then did.
COMPILING = ("forward", "loss", "backward", "launch", "other")


def check(budget: Budget, compiles: Compiles | None) -> Found | None:
    if compiles is None:  # nothing was ever compiled
        return None
    if not compiles.clean_recompiles and not compiles.limit_hit:
        return None
    worst = max(compiles.reasons, key=_times, default=None)
    at = worst.at if worst and worst.at and is_user_file(worst.at.file) else None
    return Found(
        summary=_summary(budget, compiles, at),
        evidence=(
            count("compiled again, in the clean steps", compiles.clean_recompiles, "probe",
                  "per_step"),
            ns("compiling, per step", compiles.clean_ns, "probe"),
            count("compiled again, in all", compiles.recompiles, "probe"),
            ns("compiling, in all", compiles.total_ns, "probe"),
            *((text("guard that failed most", worst.reason, "probe"),) if worst else ()),
        ),
        fix=Fix(_advice(worst, at), "review"),
        gain=None if not compiles.clean_ns else Gain(
            0.0,
            compiles.clean_ns,
            "high end: nothing is compiled in a step; low end: it ends by itself.",
            COMPILING,
        ),
        at=at,
    )  # fmt: skip


def _times(reason: Recompiled) -> int:
    return reason.times


def _summary(budget: Budget, compiles: Compiles, at: Place | None) -> str:
    given_up = "a function was given up after too many versions and runs as plain Python"
    if not compiles.clean_recompiles:
        return f"Of {compiles.frames} compilations, {given_up}{where(at)}."
    spent = f"{duration(compiles.clean_ns)} a step ({percent(compiles.clean_ns / budget.step_ns)})"
    more = f"; {given_up}" if compiles.limit_hit else ""
    return (
        f"Functions are compiled again {counted(compiles.clean_recompiles)} times a step"
        f"{where(at)}: {spent}{more}."
    )


def _advice(worst: Recompiled | None, at: Place | None) -> str:
    because = f" (the guard that fails: {worst.reason.rstrip('.')})" if worst else ""
    return (
        f"Give what is compiled{where(at)} one shape, padded to a few fixed lengths and with"
        f" drop_last=True, or torch.compile(..., dynamic=True){because}."
    )


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
