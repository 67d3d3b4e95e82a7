"""How close the step's work comes to the machine's best rates.

The best time of an op is the longer of its arithmetic and its memory traffic at the machine's
rates; that of the step is the sum over its ops. Docs: docs/roofline.md.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from tdiag.diagnose.costs import fixed_cost, undisturbed
from tdiag.evidence.machine import System
from tdiag.evidence.roofline import OpWork, Roof, Work
from tdiag.evidence.steps import Budget
from tdiag.evidence.store import Evidence
from tdiag.evidence.torch_ops import Dispatch
from tdiag.model.diagnosis import Roofline, RooflineLine
from tdiag.model.place import Place
from tdiag.model.threshold import Threshold
from tdiag.rules.base import MODEL_PHASES
from tdiag.rules.fixed_cost import unknown_work_ns

EFFICIENT_FRAC = Threshold(
    0.4,
    "of what the machine reaches",
    "Measured: the ten healthy runs of benchmarks/accuracy.py (wide layers, convolutions)"
    " reached 0.87 to 1 of it in the time that other programs left them; 20 with small calls,"
    " loops or hand-written optimizers in the step 0 to 0.33 (torch 2.13, rates of the idle"
    " machine).",
)
MOST_LINES = Threshold(
    5, "lines", "Heuristic: what is not among the first five takes too little to matter."
)


def make_roofline(evidence: Evidence, budget: Budget | None) -> Roofline | None:
    """None without a budget, machine rates, or recorded shapes: ``why_unknown`` says which."""
    work, roof = evidence.get(Work), evidence.get(Roof)
    if budget is None or work is None or roof is None:
        return None
    device = budget.has_device
    parts = budget.components_ns
    spent = parts.get("compute", 0) if device else sum(parts.get(x, 0) for x in MODEL_PHASES)
    alone = spent * (1.0 if device else undisturbed(evidence))
    best = {"compute": 0.0, "memory": 0.0}
    for op in work.ops:
        best[_bound(op, roof)] += _best_ns(op, roof)
    if not alone or not sum(best.values()):
        return None
    called = 0.0 if device else _calling(evidence, work, roof)
    bounds = best | {"dispatch": called}
    return Roofline(
        efficiency=round(min(1.0, sum(best.values()) / alone), 4),
        bound=max(bounds, key=lambda name: bounds[name]),
        step_ns=round(alone),
        compute_ns=round(best["compute"]),
        memory_ns=round(best["memory"]),
        dispatch_ns=round(called),
        calls=round(work.calls),
        threads=roof.threads,
        threads_used=roof.in_force.threads if roof.in_force else roof.threads,
        idle_threads_frac=round(min(1.0, _idle_ns(work, roof, evidence.get(System)) / alone), 4),
        certainty=round(roof.certainty, 2),
        source=roof.source,
        lines=_lines(work.ops, roof),
    )


def why_unknown(evidence: Evidence) -> str:
    """What is missing for a roofline, and why."""
    missing = Work if evidence.get(Roof) is not None else Roof
    return evidence.why_missing(missing)


def unknown_work(evidence: Evidence) -> float:
    """Time of calls that may be work which the roofline does not know, ns per step."""
    work, roof = evidence.get(Work), evidence.get(Roof)
    return unknown_work_ns(work, roof) if work and roof else 0.0


def _calling(evidence: Evidence, work: Work, roof: Roof) -> float:
    """The fixed cost of the step's calls. Counted Python calls have the cost measured in the
    program, backward included; if calls were not counted, traced calls have the lower cost of a
    call without gradients."""
    dispatch = evidence.get(Dispatch)
    price = dispatch.op_ns if dispatch else roof.op_ns or 0.0
    counted = fixed_cost(evidence, {"forward", "loss", "optimizer"})
    return max(counted, work.calls * price)


def _idle_ns(work: Work, roof: Roof, system: System | None) -> float:
    """How much of the best time more threads would save, ns; nothing if no core is free for one
    more."""
    now = roof.in_force
    if now is None or now.threads is None:
        return 0.0
    if system is not None and system.fitting(now.threads) <= now.threads:
        return 0.0
    return sum(now.best_ns(op) - roof.best_ns(op) for op in work.ops)


def _best_ns(op: OpWork, roof: Roof) -> float:
    """Never longer than the op took, because data in a cache moves faster than memory."""
    return min(roof.best_ns(op), op.spent_ns)


def _bound(op: OpWork, roof: Roof) -> str:
    return "compute" if roof.compute_ns(op) >= roof.memory_ns(op) else "memory"


def _lines(ops: Sequence[OpWork], roof: Roof) -> tuple[RooflineLine, ...]:
    """The ops that take most of the traced step, by name and by the function that calls them."""
    together: dict[tuple[str, Place | None], list[OpWork]] = defaultdict(list)
    for op in ops:
        together[op.name, op.at].append(op)
    found = [_line(name, at, mine, roof) for (name, at), mine in together.items()]
    return tuple(sorted(found, key=lambda line: -line.ns)[: int(MOST_LINES)])


def _line(name: str, at: Place | None, ops: Sequence[OpWork], roof: Roof) -> RooflineLine:
    best = sum(_best_ns(op, roof) for op in ops)
    count = sum(op.count for op in ops)
    bounds = {"compute": 0.0, "memory": 0.0, "dispatch": count * (roof.op_ns or 0.0)}
    for op in ops:
        bounds[_bound(op, roof)] += _best_ns(op, roof)
    return RooflineLine(
        name=name,
        at=at,
        count=round(count, 2),
        ns=round(sum(op.spent_ns for op in ops)),
        best_ns=round(best),
        bound=max(bounds, key=lambda b: bounds[b]),
    )
