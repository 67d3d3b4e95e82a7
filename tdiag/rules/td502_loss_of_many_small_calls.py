"""The loss is made of many small calls

## What it measures
Lines of the loss that do not loop but make many torch calls per step, each of little more than the
fixed cost of a call; their clean time and that of their backward. With compiled graphs, where calls
cannot be counted by line: the calls of the whole loss in the trace.

## Why it is slow
Every call pays dispatch, and on a device a launch, and reads and writes its data once. A chain of
twenty element-wise calls reads and writes memory twenty times.

## What to do
Compile the loss function (it has no branches on values), or use the built-in loss that does the
same in one call.

## How the gain is computed
From these lines' time in loss and backward. High end: three quarters (four calls become one). Low
end: a quarter.

## When this advice is wrong
Compiling takes seconds to minutes at the start and for every new shape: do not compile short runs.
"""

from __future__ import annotations

from tdiag.evidence.sampled import Stacks
from tdiag.evidence.steps import Budget, Phases
from tdiag.evidence.store import Evidence
from tdiag.evidence.torch_ops import Dispatch, HostOps, Ops
from tdiag.evidence.training import Flags, Modules
from tdiag.model.diagnosis import Fix
from tdiag.model.place import Place
from tdiag.model.threshold import Threshold
from tdiag.probe.wire import is_user_file
from tdiag.rules.base import Abstain, Found, Gain, count, ns, same_function, where
from tdiag.rules.examples import at, budget, op_line, ops, phases
from tdiag.rules.fixed_cost import FIXED_COST_FACTOR
from tdiag.rules.loops import in_loss, loop_time
from tdiag.rules.thresholds import FUSED_HIGH_FRAC, FUSED_LOW_FRAC
from tdiag.units import duration, percent

CODE = "TD502"
NAME = "loss-of-many-small-calls"
CLASS = "python_loss"

MIN_CALLS = Threshold(
    48,
    "torch calls per step",
    "Heuristic: a loss of several built-in terms makes two dozen calls, so twice that is a"
    " formula written out.",
)
MAX_LINE_CALLS = Threshold(
    8, "calls of a line per step", "Heuristic: a line with as many calls loops; TD501 covers loops."
)


def check(
    budget: Budget,
    phases: Phases,
    dispatch: Dispatch,
    ops: Ops | None,
    modules: Modules | None,
    host_ops: HostOps | None,
    flags: Flags | None,
    stacks: Stacks | None,
) -> Found | None:
    if flags is not None and flags.compiled:
        return _beside_compiled(budget, phases, dispatch, modules, host_ops, stacks)
    if ops is None:
        raise Abstain("torch calls were not counted (window ops)")
    lines = [x for x in ops.lines if in_loss(x, modules) and x.calls < MAX_LINE_CALLS]
    time = loop_time(lines, ops, phases, modules, host_ops)
    if any(line.conversions for line in lines):
        return None
    worst = max(lines, key=lambda line: line.elapsed_ns, default=None)
    at = worst.at if worst else None
    return _found(budget, dispatch, time.calls, time.forward_ns, time.backward_ns, at)


def _beside_compiled(
    budget: Budget,
    phases: Phases,
    dispatch: Dispatch,
    modules: Modules | None,
    host_ops: HostOps | None,
    stacks: Stacks | None,
) -> Found | None:
    """For a loss that is not compiled although its model is: a compiled loss makes few calls."""
    if host_ops is None or not host_ops.calls_of:
        raise Abstain("torch calls were not counted: compiled graphs are alive, and no trace")
    of_loss = host_ops.backward_of.get("loss", 0.0) / (sum(host_ops.backward_of.values()) or 1.0)
    return _found(
        budget,
        dispatch,
        host_ops.calls_of.get("loss", 0.0),
        phases.wall_ns.get("loss", 0.0),
        phases.wall_ns.get("backward", 0.0) * of_loss,
        _loss_place(modules, stacks),
        "trace",
    )


def _loss_place(modules: Modules | None, stacks: Stacks | None) -> Place | None:
    """The sampled line of a loss module's forward that has most samples, or the module."""
    losses = [x.at for x in modules.modules if x.is_loss and x.at] if modules else []
    lines = stacks.training if stacks else ()
    inside = [line for line in lines if any(same_function(line.at, at) for at in losses)]
    inside = inside or [line for line in lines if line.phase == "loss"]
    most = max(inside, key=lambda line: line.self_frac, default=None)
    mine = [at for at in losses if is_user_file(at.file)]
    return most.at if most else mine[0] if mine else None


def _intervention(at: Place | None) -> str | None:
    """The trial's change: a function by its name, or a method if its class is known."""
    if at is None or not at.file.endswith(".py") or at.function in ("forward", "__call__"):
        return None
    named = all(part.isidentifier() for part in at.function.split("."))
    return f"torch.compile={at.file}:{at.function}" if named else None


def _found(
    budget: Budget,
    dispatch: Dispatch,
    calls: float,
    forward_ns: float,
    backward_ns: float,
    at: Place | None,
    source: str = "ops",
) -> Found | None:
    total = forward_ns + backward_ns
    if calls < MIN_CALLS or total > FIXED_COST_FACTOR * calls * dispatch.grad_op_ns:
        return None
    return Found(
        summary=(
            f"The loss{where(at)} makes {calls:.0f} small torch calls per step. With"
            f" their backward they take {duration(total)} ({percent(total / budget.step_ns)})."
        ),
        evidence=(
            count("torch calls in the loss", calls, source, "per_step"),
            ns("their time in the loss", forward_ns, "baseline"),
            ns("their time in backward", backward_ns, "baseline"),
        ),
        fix=Fix(
            f"Compile the loss{where(at)}, or use the torch.nn.functional loss that computes"
            " the same.",
            "review",
            _intervention(at),
            action="Compile the loss function",
            code="loss_fn = torch.compile(loss_fn)  # once, before the training loop",
        ),
        gain=Gain(
            total * FUSED_LOW_FRAC,
            total * FUSED_HIGH_FRAC,
            "high end: four calls become one; low end: a quarter of the calls is gone.",
            ("loss", "python_loss", "backward", "launch"),
        ),
        at=at,
    )


def fires() -> Evidence:
    return _loss(call_us=15)


def clear() -> Evidence:
    """As many calls, but each works for a millisecond."""
    return _loss(call_us=1000)


def _loss(call_us: float) -> Evidence:
    lines = [
        op_line(n, "loss", 4, grad_calls=4.0, elapsed_ns=4000 * call_us, at=at(n, "loss_of"))
        for n in range(50, 70)
    ]
    step = budget(forward=3, loss=0.02 * call_us, backward=0.06 * call_us)
    clean = phases(forward=3, loss=0.02 * call_us, backward=0.06 * call_us)
    forward = op_line(20, "forward", 12, grad_calls=12.0, elapsed_ns=20_000)
    return Evidence().add(step, clean, ops(*lines, forward), Dispatch(op_ns=1500, grad_op_ns=7000))
