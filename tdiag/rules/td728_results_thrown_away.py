"""Most of a layer's result is thrown away

## What it measures
Products and convolutions of the forward pass and the loss that take longer than a call's fixed
cost. Their results are followed, through views and what works on each element or each row (a
softmax, a sum over the last dimension), up to the calls that take them: a slice or an index takes
its part, a diagonal its numbers, a gather its numbers if no softmax came before, `torch.where` the
rows that it chooses, a cross entropy the rows that it does not ignore, a product with a
column of mostly zeros the rows that it leaves, any other call takes all of it. Of its input, a
linear layer takes the rows that are taken of its result. A result counts if at most half of it is
taken until the counted steps are over, in none of them more: a metric may read it after the step. A
line counts if most of its time goes to such results; where it is a smaller part, if that is a large
part of the step.

## Why it is slow
A language model's scores for all positions where only the last is read, or where most labels are
ignored (prompts, unmasked tokens): the output layer is often the largest product of the model. A
mixture whose experts all run on every token, although the gate is zero for most. The backward pass
computes the unused rows again, with gradients of zero.

## What to do
Take the positions first, then apply the layer: `head(states[:, -1])` instead of
`head(states)[:, -1]`, `head(states[labels != -100])` before the loss, `expert(x[choice == e])`.
Of a product whose diagonal alone is read (variances without covariances), multiply rows in pairs:
`(a * b.mT).sum(-1)` instead of `(a @ b).diagonal()`. Of scores of all items of which a few are
gathered, choose the weights first: `functional.embedding(items, weight)`. Models of
Hugging Face take `logits_to_keep`. Of a batch that is stepped through in parts, index the model's
input: `model(batch[part])`.

## How the gain is computed
The time of these calls × the share that is not used, with their backward. If that was not measured
by line, it takes four times as long as that of other calls at the high end, and a quarter at the
low end. If the line runs several times a step (experts), choosing the rows for each run and adding
up their results takes time at the low end.

## When this advice is wrong
If the rest is used where the measurement does not look: in a compiled function, a custom autograd
function, or a step that was not counted.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence

from tdiag.evidence.sampled import Stacks
from tdiag.evidence.steps import Budget, Phases
from tdiag.evidence.store import Evidence
from tdiag.evidence.torch_ops import OpLine, Ops
from tdiag.model.diagnosis import Fix
from tdiag.model.place import Place
from tdiag.model.threshold import MAJORITY_FRAC, Threshold
from tdiag.rules.base import Found, Gain, count, ns, same_function, where
from tdiag.rules.call_parts import part_of_calls
from tdiag.rules.examples import at, budget, op_line, ops, phases
from tdiag.rules.syntax import function_at, name_of
from tdiag.rules.thresholds import HIGH_FRAC
from tdiag.units import duration, percent

CODE = "TD728"
NAME = "results-thrown-away"
CLASS = "compute"
UNTRIED = "the script must choose the rows before the layer"
BY_WORK = True
PHASES = ("forward", "loss")
DIAGONALS = {"diagonal", "diag", "trace"}
GATHERS = {"gather", "take_along_dim"}
OVER_ROWS = {"softmax", "log_softmax", "cross_entropy"}  # which read all scores of a row
CHOOSING_NS = Threshold(
    8e5,
    "ns",
    "Measured, experts of 64 and 128 features on 256 and 512 rows, with backward, torch 2.13, one"
    " thread: choosing rows by a gate and adding up their results took up to so much more than the"
    " rows' share (benchmarks/rule_constants.py td728).",
)


def check(budget: Budget, phases: Phases, ops: Ops, stacks: Stacks | None) -> Found | None:
    large = HIGH_FRAC * budget.step_ns
    return _found("Most", _mostly_thrown_ns, 0.0, budget, phases, ops, stacks) or _found(
        "Part", lambda line: line.thrown_away_ns, large, budget, phases, ops, stacks
    )


def _mostly_thrown_ns(line: OpLine) -> float:
    """Of lines that compute mostly what is thrown away: an index of the line's input saves it.
    Where it is the smaller part (one block of several, a layer inside a module that also mixes
    positions), the code inside must change."""
    most = line.thrown_away_ns > MAJORITY_FRAC * line.elapsed_ns
    return line.thrown_away_ns if most else 0.0


def _found(
    how_much: str, thrown_ns: Callable[[OpLine], float], least_ns: float,
    budget: Budget, phases: Phases, ops: Ops, stacks: Stacks | None,
) -> Found | None:  # fmt: skip
    part = part_of_calls(phases, ops, stacks, thrown_ns, PHASES)
    if part is None or (whole := part.ns + part.backward_ns) < least_ns:
        return None
    worst = part.lines[0]
    at = worst.samples_at
    chosen = at if at and not same_function(worst.at, at) else None
    return Found(
        summary=(
            f"{how_much} of what is computed{where(worst.at)} in {worst.at.function} is never used:"
            f" {duration(whole)} with its backward"
            f" ({percent(whole / budget.step_ns)})."
        ),
        evidence=(
            ns("computed and not used", part.ns, "baseline"),
            ns("their backward", part.backward_ns, "baseline"),
            count("torch calls of these lines", part.calls, "ops", "per_step"),
        ),
        fix=_fix(worst.at, chosen),
        gain=Gain(
            max(0.0, part.ns + part.least_backward_ns - CHOOSING_NS * _runs(part.lines)),
            part.ns + part.most_backward_ns,
            f"the {duration(part.ns)}, with {part.share.at_most}"
            f"{'' if part.share.measured else '; low end: a quarter of that of other calls'}.",
            part.phases,
        ),
        at=chosen or worst.at,
    )


def _runs(lines: Sequence[OpLine]) -> float:
    """How often the lines run per step, by the function that they call least; 0 if only once: an
    index of a single call's input takes next to no time."""
    runs = (min(line.names.values(), default=0.0) for line in lines)
    return sum(number for number in runs if number > 1)


def _fix(at: Place, chosen: Place | None) -> Fix:
    """``chosen``: where samples are chosen of what is computed ``at`` another place."""
    if chosen:
        return _of_samples(chosen)
    function = function_at(at)
    calls = (x for x in ast.walk(function or ast.Module([], [])) if isinstance(x, ast.Call))
    names = set(map(name_of, calls))
    if DIAGONALS & names:
        return _of_diagonal(at)
    return _of_columns(at) if GATHERS & names and not OVER_ROWS & names else _of_positions(at)


def _of_diagonal(at: Place) -> Fix:
    return Fix(
        f"Compute only the diagonal of the product{where(at)}: multiply rows in pairs and add up.",
        "manual",
        action="Compute only the diagonal of the product",
        code="diagonal = (a * b.mT).sum(-1)  # not (a @ b).diagonal()",
    )


def _of_columns(at: Place) -> Fix:
    return Fix(
        f"Compute only the scores that are gathered{where(at)}: choose their weights first.",
        "manual",
        action="Compute only the scores that are gathered",
        code="scores = (F.embedding(chosen, weight) @ states.unsqueeze(-1)).squeeze(-1)"
        "  # not (states @ weight.T).gather(1, chosen)",
    )


def _of_positions(at: Place) -> Fix:
    return Fix(
        f"Choose the rows or positions that are used before they are computed{where(at)}: index the"
        " layer's input, not its result.",
        "manual",
        action="Compute only the positions that are used",
        code="scores = head(states[labels != -100])  # not head(states), most of it ignored\n"
        "scores = head(states[:, -1])  # not head(states)[:, -1]",
    )


def _of_samples(at: Place) -> Fix:
    return Fix(
        f"Choose the samples before the model computes them all: index its input{where(at)}, not"
        " its result.",
        "manual",
        action="Compute only the samples that are used",
        code="scores = model(batch[chosen])  # not model(batch)[chosen]",
    )


def fires() -> Evidence:
    """Scores of all positions, of which the last is read."""
    return _scored(thrown_away=15e6)


def clear() -> Evidence:
    """Scores of the last position."""
    return _scored(thrown_away=0.0)


def _scored(thrown_away: float) -> Evidence:
    head = op_line(
        20,
        "forward",
        1,
        grad_calls=1.0,
        elapsed_ns=16e6,
        thrown_away_ns=thrown_away,
        at=at(20, "forward"),
    )
    rest = op_line(24, "forward", 60, grad_calls=60.0, elapsed_ns=24e6)
    step = budget(forward=40, backward=60, optimizer=5)
    clean = phases(forward=40, backward=60, optimizer=5)
    return Evidence().add(step, clean, ops(head, rest))
