"""Results that nothing uses are computed

## What it measures
Calls of the forward pass and the loss that record gradients or that a module makes, and whose
results are used for nothing: Python does not read them, no backward goes through them, they are not
written into anything older, and whatever takes them is not used either. A result counts once Python
can no longer reach it, so a figure that an attribute or a list still holds does not count. The
place is the outermost line that leads to nothing used. A hook that is registered again and again is
TD725's.

## Why it is slow
A further pass of the model for a figure that only some steps show, an output that the loss does not
take, a second loss that is not added: their forward pass is computed and, as gradients are on,
everything that a backward would need is kept in memory. Without gradients the pass itself remains.

## What to do
Remove it. If some steps show the value, compute it in these steps only, under `torch.no_grad()`.

## How the gain is computed
High end: the calls' share of the phase's time in the clean steps; low end: nine tenths of it, for a
value that one step in ten still shows.

## When this advice is wrong
If the value is used where the measurement does not look: by an extension of C++, by another process
that a queue hands it to, or in steps other than the counted ones. If the pass is there for what it
changes on the way, such as the running statistics of batch norms.
"""

from __future__ import annotations

from tdiag.evidence.sampled import Stacks
from tdiag.evidence.steps import Budget, Phases
from tdiag.evidence.store import Evidence
from tdiag.evidence.torch_ops import NeverUsedLine, Ops
from tdiag.evidence.training import RepeatedHooks
from tdiag.model.diagnosis import Fix
from tdiag.rules.base import Found, Gain, count, ns, where
from tdiag.rules.call_parts import part_of_calls
from tdiag.rules.examples import at, budget, op_line, ops, phases
from tdiag.rules.thresholds import LOG_LOW_FRAC
from tdiag.units import duration, percent

CODE = "TD737"
NAME = "results-never-used"
CLASS = "compute"
UNTRIED = "whether the value is needed is known to the script alone"
BY_WORK = True


def check(
    budget: Budget,
    phases: Phases,
    ops: Ops,
    stacks: Stacks | None,
    repeated: RepeatedHooks | None,
) -> Found | None:
    if not ops.never_used:
        return None
    part = part_of_calls(phases, ops, stacks, lambda x: x.never_used_ns)
    if part is None:
        return None
    total = part.ns
    worst = max(ops.never_used, key=lambda x: x.ns).at
    if worst is not None and repeated is not None and repeated.of(worst) > 1:
        return None  # a hook that is registered again and again: TD725
    return Found(
        summary=(
            f"What is computed{where(worst)} is never used: {duration(total)} per step"
            f" ({percent(total / budget.step_ns)}) in calls whose results nothing reads and no"
            " backward goes through."
        ),
        evidence=(
            ns("calls whose results nothing uses", total, "baseline"),
            count("torch calls of these lines", part.calls, "ops", "per_step"),
        ),
        fix=Fix(
            f"Remove the computation{where(worst)}, or do it under torch.no_grad() in the steps"
            " that show its value.",
            "review",
            action="Do not compute what nothing uses",
            code="if step % 100 == 0:\n"
            "    with torch.no_grad():\n"
            "        spread = model(other).std()",
        ),
        gain=Gain(
            total * LOG_LOW_FRAC,
            total,
            f"high end: all of the {duration(total)}; low end: nine tenths of it.",
            tuple(part.spent),
            calls_go=True,
        ),
        at=worst,
    )


def fires() -> Evidence:
    """Two more passes of the model, for a figure that the next step overwrites."""
    return _passes(never_used=24e6)


def clear() -> Evidence:
    """The loss takes all passes."""
    return _passes(never_used=0.0)


def _passes(never_used: float) -> Evidence:
    more = op_line(20, "forward", 12, grad_calls=12.0, elapsed_ns=24e6, never_used_ns=never_used)
    rest = op_line(24, "forward", 6, grad_calls=6.0, elapsed_ns=12e6)
    counted = ops(more, rest)
    if never_used:
        unused = (NeverUsedLine(at=at(20, "forward"), ns=never_used),)
        counted = Ops(steps=counted.steps, lines=counted.lines, never_used=unused)
    step = budget(forward=36, backward=24, optimizer=4)
    return Evidence().add(step, phases(forward=36, backward=24, optimizer=4), counted)
