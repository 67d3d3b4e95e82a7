"""A tensor is copied and the copy is only read

## What it measures
Calls of `clone`, and copies that `copy.deepcopy` or `dataclasses.asdict` make of tensors, that take
a tenth of a millisecond or more. A copy counts once its memory is free again, if neither the copy
nor the tensor that was copied has changed meanwhile. Copies that record gradients do not count, nor
those of memory that torch does not own alone: of NumPy arrays, files and other processes.
Counted while torch calls are counted.

## Why it is slow
All bytes are read and written, into memory that is new to the process each time: the system clears
it first. For a few rows of a large table, copying the table takes nearly all of the time.

## What to do
Read the tensor itself. `dataclasses.asdict` copies all that it holds, deeply: take `vars(item)`, or
a dictionary of its fields.

## How the gain is computed
The time of these calls × the smallest and the largest share of it that leaving out the copy saved
in measurements: more than all, because memory must be given back, and a copy takes the caches from
what follows. High end: as much as the stack samples show, if that is more.

## When this advice is wrong
If a later step changes the tensor while the copy is still read: only some steps were watched.
"""

from __future__ import annotations

from tdiag.evidence.sampled import Stacks
from tdiag.evidence.steps import Budget, Phases, component_of
from tdiag.evidence.store import Evidence
from tdiag.evidence.torch_ops import OpLine, Ops
from tdiag.model.diagnosis import Fix
from tdiag.model.threshold import Threshold
from tdiag.rules.base import MODEL_PHASES, Found, Gain, count, ns, where
from tdiag.rules.call_parts import BEFORE_BACKWARD, part_of_phases, sampled_part
from tdiag.rules.copying import SAVED_HIGH
from tdiag.rules.examples import at, budget, op_line, ops, phases
from tdiag.units import duration, percent

CODE = "TD758"
NAME = "copied-only-to-read"
CLASS = "memory"
UNTRIED = "whether something else needs the copy is known to the script alone"

SAVED_LOW_FRAC = Threshold(
    0.9,
    "of the time of copying",
    "Measured, reading 256 rows, or all, of a table of 5 to 77 MB and of its copy, torch 2.13, one"
    " thread: at least 0.97 of the time went (benchmarks/rule_constants.py td758).",
)
AMONG = (*BEFORE_BACKWARD, "optimizer", "after_step")


def check(budget: Budget, phases: Phases, ops: Ops, stacks: Stacks | None) -> Found | None:
    spent = part_of_phases(phases, ops, _copied, AMONG)
    copying = sum(spent.values())
    if not copying:
        return None
    lines = sorted((x for x in ops.lines if _copied(x)), key=_copied, reverse=True)
    line = lines[0]
    # Memory that is asked for again may cost more outside of the window that counts calls, and
    # giving it back costs, too. On a device, samples show where the host waits.
    sampled = 0.0 if budget.has_device else sampled_part(lines, _copied, stacks) * budget.step_ns
    whole = max(copying, sampled)
    return Found(
        summary=(
            f"Tensors are copied and the copies are only read, most of them{where(line.at)}: that"
            f" takes {duration(whole)} per step ({percent(whole / budget.step_ns)})."
        ),
        evidence=(
            ns("copies that are only read", copying, "baseline"),
            count("torch calls of these lines", sum(x.calls for x in lines), "ops", "per_step"),
        ),
        fix=_fix(line),
        gain=Gain(
            copying * SAVED_LOW_FRAC,
            whole * SAVED_HIGH,
            f"low end: {percent(SAVED_LOW_FRAC)} of the copying goes; high end:"
            f" {percent(SAVED_HIGH)}, as what follows finds more in the caches.",
            tuple(dict.fromkeys((*map(component_of, spent), *MODEL_PHASES))),
        ),
        at=line.at,
    )


def _copied(line: OpLine) -> float:
    return line.copied_to_read_ns


def _fix(line: OpLine) -> Fix:
    if "__deepcopy__" in line.names:
        return Fix(
            f"Hand on what is copied deeply{where(line.at)} itself: copy.deepcopy and"
            " dataclasses.asdict copy each tensor in it, and nothing changes the copies.",
            "review",
            action="Read the tensors instead of deep copies",
            code="fields = dict(vars(item))  # not dataclasses.asdict(item)",
        )
    return Fix(
        f"Read the tensor itself{where(line.at)}: neither it nor its copy changes while the copy is"
        " used.",
        "review",
        action="Read the tensor instead of a copy",
        code="rows = table[index]  # not table.clone()[index]",
    )


def fires() -> Evidence:
    """A table of 46 MB in a dataclass that ``asdict`` copies in each step."""
    return _matcher(copied=11.7)


def clear() -> Evidence:
    """The same table, handed on."""
    return _matcher(copied=0.0)


def _matcher(copied: float) -> Evidence:
    call = op_line(
        118, "prepare", 5, elapsed_ns=(copied + 0.2) * 1e6, copied_to_read_ns=copied * 1e6,
        names={"__deepcopy__": 1.0}, at=at(118),
    )  # fmt: skip
    model = op_line(68, "forward", 16, grad_calls=4.0, elapsed_ns=2e6)
    step = budget(prepare=copied + 1, forward=4, backward=6, optimizer=2)
    timed = phases(prepare=copied + 1, forward=4, backward=6, optimizer=2)
    return Evidence().add(step, timed, ops(call, model))
