"""One output is differentiated by several calls

## What it measures
Calls of `torch.autograd.grad` for the same output (or the sum of its elements) as an earlier call
of the step, with respect to other inputs. Of each, the share of the graph between output and inputs
that earlier calls went through.

## Why it is slow
Each call goes through the graph from the output again: `u_x`, `u_y` and `u_t` of a network are
three passes where one has all of them. With `create_graph=True` each pass also records a graph of
its own, through which the loss's backward goes once more.

## What to do
Name all inputs in one call: `u_x, u_y, u_t = torch.autograd.grad(u, (x, y, t), ones,
create_graph=True)`.

## How the gain is computed
Low end: the shared part of the later calls. High end: as large a share of the backward through the
graphs that these calls recorded.

## When this advice is wrong
If an input of a later call is made from the gradient of an earlier one.
"""

from __future__ import annotations

from tdiag.evidence.steps import Budget, Phases
from tdiag.evidence.store import Evidence
from tdiag.evidence.torch_ops import OpLine, Ops
from tdiag.model.diagnosis import Fix
from tdiag.model.threshold import MAJORITY_FRAC
from tdiag.probe.wire import GRAD_OF_ELEMENT
from tdiag.rules.base import Found, Gain, count, ns, where
from tdiag.rules.examples import at, budget, op_line, ops, phases
from tdiag.units import duration, percent

CODE = "TD747"
NAME = "gradients-in-separate-calls"
CLASS = "compute"
UNTRIED = "the calls have to be joined in the script"
BY_ISSUE = True


def check(budget: Budget, phases: Phases, ops: Ops) -> Found | None:
    lines = [x for x in ops.lines if x.separate_ns]
    again = sum(x.separate_ns for x in lines)
    backward = phases.wall_ns.get("backward", 0.0)
    if not lines or not backward:
        return None
    worst = max(lines, key=lambda x: x.separate_ns)
    grads = [x for x in ops.lines if _differentiates(x)]
    all_grads = max(again, sum(x.elapsed_ns for x in grads))
    through = backward - all_grads if any(x.grad_calls for x in grads) else 0.0
    most = again + max(0.0, through) * again / all_grads
    return Found(
        summary=(
            f"torch.autograd.grad is called again{where(worst.at)} for an output that was"
            f" differentiated before, with respect to another input: {duration(again)}"
            f" ({percent(again / budget.step_ns)} of the step) through the same graph."
        ),
        evidence=(
            ns("later calls, where they go the same way", again, "ops"),
            ns("all calls of torch.autograd.grad", all_grads, "ops"),
            count("calls of torch.autograd.grad", _calls(grads), "ops", "per_step"),
            ns("all of backward", backward, "baseline"),
        ),
        fix=Fix(
            f"Join the calls of torch.autograd.grad{where(worst.at)}: one call takes all inputs.",
            "safe",
            action="Compute all gradients of an output in one call",
            code="u_x, u_y = torch.autograd.grad(u, (x, y), torch.ones_like(u), create_graph=True)",
        ),
        gain=Gain(
            again,
            most,
            f"low end: the {duration(again)}; high end: as much of the backward through the graphs"
            " that these calls recorded.",
            ("backward",),
        ),
        at=worst.at,
    )


def _differentiates(line: OpLine) -> bool:
    return _calls([line]) > MAJORITY_FRAC * line.calls


def _calls(lines: list[OpLine]) -> float:
    return sum(x.names.get(name, 0.0) for x in lines for name in ("grad", GRAD_OF_ELEMENT))


def fires() -> Evidence:
    """The derivatives of a network's output by x, y and t."""
    return _points(separate=2.0)


def clear() -> Evidence:
    """One call for all three."""
    return _points(separate=0.0)


def _points(separate: float) -> Evidence:
    lines = ops(
        *(
            op_line(73 + n, "backward", 1, grad_calls=1.0, names={"grad": 1.0}, elapsed_ns=6e6,
                    separate_ns=6e6 if n and separate else 0.0, at=at(73 + n, "residual"))
            for n in range(3)
        ),
        op_line(52, "loss", 8, grad_calls=8.0, elapsed_ns=1e5),
    )  # fmt: skip
    step = budget(forward=6, loss=1, backward=48, optimizer=2)
    return Evidence().add(step, phases(forward=6, loss=1, backward=48, optimizer=2), lines)
