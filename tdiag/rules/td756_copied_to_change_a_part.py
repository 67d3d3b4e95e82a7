"""A buffer is copied to change a part of it

## What it measures
Calls that copy what the same line copied before, and change or add less than half of it:
`torch.cat` and its like; `clone` with an assignment to some rows after it; `index_copy`, `scatter`
and others that return a copy. Only what records no gradients when it is copied counts. And what
picks rows of such a copy, where gradients are recorded. Counted while torch calls are counted.

## Why it is slow
All that was there is copied: a replay memory, a queue of keys, a table of embeddings. Memory of
this size is handed back to the system and asked for again each time. The cost is that of the whole
buffer, however little is new. If new rows that have a gradient are written into it, backward makes
gradients as large as the buffer as well.

## What to do
Make the buffer once, in its full size, and write new rows into it: `buffer[at : at + n] = rows`,
with `at` going round. Write rows without their gradient (`rows.detach()`), and take the new rows
themselves where the gradient must flow. Where all rows are needed only once in a while, keep the
parts in a list and join them then.

## How the gain is computed
The time of these calls × the share of the result that was there before, with their backward. Low
end: nine tenths of that; half, if gradients are recorded, because other calls must then choose
between old and new rows. High end: more than all of it, as measured, because memory must be given
back, and the copy takes the caches from what follows; or as much as the stack samples show.

## When this advice is wrong
If something keeps the older tensors and must not see new rows in them.
"""

from __future__ import annotations

from dataclasses import replace

from tdiag.evidence.sampled import Stacks
from tdiag.evidence.steps import Budget, Phases
from tdiag.evidence.store import Evidence
from tdiag.evidence.torch_ops import OpLine, Ops
from tdiag.model.diagnosis import Fix
from tdiag.model.threshold import Threshold
from tdiag.rules.base import Found, count, ns, where
from tdiag.rules.call_parts import BEFORE_BACKWARD, part_of_calls, sampled_part
from tdiag.rules.copying import SAVED_HIGH
from tdiag.rules.examples import at, budget, op_line, ops, phases
from tdiag.rules.thresholds import LOW_END_FRAC
from tdiag.units import duration, percent

CODE = "TD756"
NAME = "copied-to-change-a-part"
CLASS = "memory"
UNTRIED = "the buffer must be made in its full size where the script begins it"

SAVED_LOW_FRAC = Threshold(
    0.9,
    "of the time of copying",
    "Measured, joining 1 to 256 rows to 2 to 40 MB and cutting off as many against writing them"
    " into a ring, torch 2.13, two threads: at least 0.92 of the time went"
    " (benchmarks/rule_constants.py td756).",
)


def check(budget: Budget, phases: Phases, ops: Ops, stacks: Stacks | None) -> Found | None:
    part = part_of_calls(phases, ops, None, _copied, (*BEFORE_BACKWARD, "after_step"))
    if part is None:
        return None
    line = part.lines[0]
    learns = any(x.grad_calls for x in part.lines)
    low = LOW_END_FRAC if learns else SAVED_LOW_FRAC
    gain = part.gain_if_less(
        low,
        1.0,
        f"low end: {percent(low)} of the copying goes; high end: {percent(SAVED_HIGH)}, as the"
        " memory need not be given back, and what follows finds more in the caches",
    )
    # Memory that is asked for again may cost more outside of the window that counts calls.
    # On a device, samples show where the host waits.
    share = 0.0 if budget.has_device else sampled_part(part.lines, _copied, stacks)
    sampled = share * budget.step_ns
    beyond = (SAVED_HIGH - 1) * part.ns
    gain = replace(gain, high_ns=max(gain.high_ns + beyond, sampled * SAVED_HIGH))
    whole = max(part.ns + part.backward_ns, sampled)
    return Found(
        summary=(
            f"A whole buffer is copied to add to it or to change a part of it{where(line.at)}: that"
            f" takes {duration(whole)} per step ({percent(whole / budget.step_ns)})"
            f"{' with its backward' if learns else ''}."
        ),
        evidence=(
            ns("copying what was there", part.ns, "baseline"),
            *((ns("its backward", part.backward_ns, "baseline"),) if learns else ()),
            count("torch calls of these lines", part.calls, "ops", "per_step"),
        ),
        fix=Fix(
            f"Make the buffer once in its full size, and write new rows into it{where(line.at)}"
            f"{', without their gradient' if learns else ''}, from the beginning again when it is"
            " full.",
            "review",
            action="Write into the buffer instead of copying it",
            code="buffer = torch.empty(capacity, width)  # once\n"
            "buffer[(at + torch.arange(len(rows))) % capacity] = rows.detach()  # at += len(rows)",
        ),
        gain=gain,
        at=line.at,
    )


def _copied(line: OpLine) -> float:
    return line.copied_on_ns


def fires() -> Evidence:
    """A replay memory that is joined with each transition."""
    return _agent(copied=4.2)


def clear() -> Evidence:
    """The same memory as a ring."""
    return _agent(copied=0.0)


def _agent(copied: float) -> Evidence:
    push = op_line(
        58, "prepare", 2, elapsed_ns=(copied + 0.1) * 1e6, copied_on_ns=copied * 1e6,
        at=at(58, "push"),
    )  # fmt: skip
    model = op_line(87, "forward", 16, grad_calls=4.0, elapsed_ns=2e6)
    step = budget(prepare=copied + 1, forward=2, backward=1.2, optimizer=0.7)
    timed = phases(prepare=copied + 1, forward=2, backward=1.2, optimizer=0.7)
    return Evidence().add(step, timed, ops(push, model))
