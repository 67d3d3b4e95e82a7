"""Compiled functions fall back to Python in every step

## What it measures
Lines at which torch.compile ended a graph before the function ended: how often the traced steps
continued after each, and the host's time from the end of one graph to the start of the next.

## Why it is slow
Between two graphs the function runs as plain Python, op by op. Nothing is fused across the break,
every part has its own guards to check, and `.item()` or a branch on a tensor's value also waits for
the device.

## What to do
Move printing, logging and conversions to Python numbers out of the compiled function. Replace
branches on values by `torch.where`. `torch.compile(..., fullgraph=True)` raises an error at the
first break that is left.

## How the gain is computed
High end: the time between the graphs, as traced, scaled to the clean step. Low end: nothing,
because the code that runs there may be needed.

## When this advice is wrong
The work between the graphs may be needed and have no form that torch.compile understands, such as
a call into another library.
"""

from __future__ import annotations

from tdiag.evidence.compiling import (
    BrokenAt,
    Compilation,
    CompiledRegions,
    Compiles,
    graph_breaks,
)
from tdiag.evidence.steps import Budget, TracedSteps
from tdiag.evidence.store import Evidence
from tdiag.model.diagnosis import Fix
from tdiag.model.threshold import NOTICEABLE_FRAC
from tdiag.rules.base import Abstain, Found, Gain, count, ns, text, where
from tdiag.rules.examples import MS, at, budget, traced
from tdiag.units import per_step, plural

CODE = "TD716"
NAME = "graph-breaks"
CLASS = "overhead"
UNTRIED = "the code that breaks the graph must be rewritten"

WAITS = ("forward", "loss", "python_loss", "sync", "launch", "other")


def check(
    budget: Budget,
    compiles: Compiles | None,
    regions: CompiledRegions | None,
    traced: TracedSteps | None,
) -> Found | None:
    if compiles is None or not compiles.breaks:
        return None
    if regions is None or regions.graphs_ns is None or traced is None:
        raise Abstain("no traced step marks its compiled graphs")
    breaks = [x for x in graph_breaks(compiles, regions) if x.per_step and x.ns]
    scale = min(1.0, budget.step_ns / traced.mean_ns)
    cost = sum(x.ns or 0.0 for x in breaks) * scale
    if cost < NOTICEABLE_FRAC * budget.step_ns:
        return None
    worst = breaks[0]
    hits = sum(x.per_step or 0.0 for x in breaks)
    return Found(
        summary=(
            f"Compiled code falls back to Python {plural(round(hits, 2), 'time')} per step,"
            f" mostly{where(worst.at)}: {per_step(cost, budget.step_ns)} between the graphs."
        ),
        evidence=(
            count("graph breaks met", hits, "trace", "per_step"),
            ns("between graphs, per step", cost, "trace"),
            ns("of these, after this line", (worst.ns or 0.0) * scale, "trace"),
            text("reason", worst.reason, "probe"),
            ns("in compiled graphs, per traced step", regions.graphs_ns, "trace"),
        ),
        fix=Fix(
            f"Take what torch.compile cannot compile{where(worst.at)} out of the compiled function:"
            f" {worst.reason.rstrip('.')}. With fullgraph=True every break is an error.",
            "review",
            action="Remove the graph breaks",
            code="model = torch.compile(model, fullgraph=True)",
        ),
        gain=Gain(
            0.0,
            cost,
            "high end: no time between the graphs; low end: nothing, if that work is needed.",
            WAITS,
        ),
        at=worst.at,
    )


def fires() -> Evidence:
    """A loss that is printed within the compiled function."""
    return _compiled(gap_ms=30.0)


def clear() -> Evidence:
    """A break that costs next to nothing."""
    return _compiled(gap_ms=0.1)


def _compiled(gap_ms: float) -> Evidence:
    broken = BrokenAt(
        lines=(at(12, "forward"),), times=1,
        reason="Unsupported Tensor.item() call with capture_scalar_outputs=False",
    )  # fmt: skip
    rest = Compilation(number="1/0", at=at(12, "forward"), ops=40, ns=900 * MS, resumed_at=12)
    compiles = Compiles(
        frames=2, recompiles=0, total_ns=2_000 * MS, clean_recompiles=0.0, clean_ns=0.0,
        reasons=(), limit_hit=False, compilations=(rest,), breaks=(broken,),
    )  # fmt: skip
    regions = CompiledRegions(
        entered={"0/0": 1.0, "1/0": 1.0}, gap_ns={"1/0": gap_ms * MS}, graphs_ns=50.0 * MS,
        broken_ns=gap_ms * MS, eager_ns=20.0 * MS, guards_ns=0.1 * MS,
    )  # fmt: skip
    step = budget(forward=60, backward=50, optimizer=10)
    return Evidence().add(step, traced(120), compiles, regions)
