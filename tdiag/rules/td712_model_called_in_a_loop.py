"""The model is called in a loop, on little each time

## What it measures
How often the same outermost module, or a layer with the same weights, is called before one
backward, where that is at least a dozen times; and whether a call is worth it: on a CPU the time of
the loop and its backward against the fixed cost of their torch calls, on a device the idle time
before kernels that start the moment they are launched. Calls that work count, too, where each was
given one sample, or is one of torch's recurrent cells.

## Why it is slow
Python, dispatch and launch cost the same for one sample as for a batch, and so does reading the
weights from memory. Called 32 times on one sample instead of once on 32, small models took 7 to 17
times as long, an encoder and an LSTM 5 to 6 times, convolutions 1.0 to 2.3 times; cells in a loop
1.1 to 4.2 times what the whole sequence took (torch 2.13, one core).

## What to do
Stack what the model is called with and call it once. Where each call needs what the one before
gave: a cell (`nn.LSTMCell`) has a module for whole sequences (`nn.LSTM`); an agent steps several
environments at once, a decoder several sequences, and the model is called on all of their states.

## How the gain is computed
Two things decide it: how many calls become one, and how much of a call is fixed cost. The first is
the batch, the sequence, or the number of environments that you choose; of the second only the floor
is measured, the cost of as many empty torch calls. So the gain is known from below: where calls
wait for values read from the one before, half of that floor, as with two environments at once; else
all of it but one call's (device: of the starved time). High end: all but one of the calls' time;
where the calls work on their data, and for cells, what was won at most in the trials above. Cells
won a tenth at least. To measure it, time a step with two, four and eight at once: the time saved
goes by 1/2, 3/4 and 7/8 of the fixed cost.

## When this advice is wrong
A recurrence of one sequence cannot be stacked: compile it. Steps of several environments or
sequences at once are another training: more samples for each update, or shorter ones.
"""

from __future__ import annotations

from dataclasses import dataclass

from tdiag.evidence.device import DeviceTime
from tdiag.evidence.kinds import Budget, Dispatch, Modules, Ops, Phases
from tdiag.evidence.store import Evidence
from tdiag.model.diagnosis import Fix, Measure
from tdiag.rules.base import Abstain, Found, Gain, where
from tdiag.rules.device_waits import ISSUING, ISSUING_TAGS, starved_ns
from tdiag.rules.examples import at, budget, module, op_line, ops, phases
from tdiag.rules.fixed_cost import FIXED_COST_FACTOR, cost_of
from tdiag.rules.loops import conversions
from tdiag.rules.measures import count, ns
from tdiag.rules.model_calls import MAJORITY_FRAC, ModelLoop, model_loop
from tdiag.units import duration, percent

CODE = "TD712"
NAME = "model-called-in-a-loop"
CLASS = "overhead"

# Where each call waits for the one before, the low end makes one call of two, no more.
IN_PAIRS_FRAC = 0.5
# The most that was won in the trial above by calls on 32 samples instead of one: two Linear(32).
WORKING_HIGH_FRAC = 1 - 1 / 17.3
# The least and the most that a whole sequence won over its cell in a loop: the latter with an LSTM
# of 64 units, 40 steps of 16.
CELL_LOW_FRAC = 1 - 1 / 1.1
CELL_HIGH_FRAC = 1 - 1 / 4.2
# Where the loop's lines lie: a criterion called in it is loss.
PHASES = ("forward", "loss")


def check(
    budget: Budget,
    phases: Phases,
    modules: Modules,
    ops: Ops | None,
    dispatch: Dispatch | None,
    device: DeviceTime | None,
) -> Found | None:
    loop = model_loop(modules, phases, ops)
    if loop is None:
        return None
    if budget.has_device:
        cost: _Cost | None = _on_device(budget, device)
    else:
        cost = _on_cpu(phases, ops, dispatch, loop)
    if cost is None or not cost.spent_ns:
        return None
    spent = cost.spent_ns
    name, place = loop.name, where(loop.at)
    left = 1 / loop.each
    most, gone = min(1 - left, cost.most_frac), f"one call instead of {loop.each:.0f}"
    if most == cost.most_frac:
        gone = f"{percent(most)} of the calls' time, the most that was won where it was tried"
    least, kept = cost.least_ns * IN_PAIRS_FRAC, "half of the fixed costs"
    if loop.sequence and not budget.has_device:
        least, kept = spent * CELL_LOW_FRAC, "the least that a sequence won where it was tried"
    elif not budget.has_device and not _waits(loop):
        least, kept = cost.least_ns * (1 - left), "the fixed costs of all calls but one"
    return Found(
        summary=(
            f"{name} is called {loop.calls:.0f} times a step with the same weights{place}:"
            f" {duration(spent / loop.calls)} a call with its backward,"
            f" {percent(spent / budget.step_ns)} of the step."
        ),
        evidence=(
            count(f"calls of {name}", loop.calls, "baseline", "per_step"),
            count("calls before each backward", loop.each, "baseline"),
            *cost.measures,
        ),
        fix=Fix(_advice(loop, place), "review"),
        gain=Gain(
            min(least, spent * most),
            spent * most,
            f"low end: {kept}; high end: {gone}.",
            ISSUING if budget.has_device else (*PHASES, "backward"),
            dict.fromkeys(ISSUING_TAGS, IN_PAIRS_FRAC) if budget.has_device else {},
            dict.fromkeys(ISSUING_TAGS, left) if budget.has_device else {},
        ),
        at=loop.at,
    )


@dataclass(frozen=True)
class _Cost:
    """Per step, ns: what the calls cost, the least of it that is fixed cost; ``most_frac``: the
    share of it that one call on everything can win."""

    spent_ns: float
    least_ns: float
    measures: tuple[Measure, ...]
    most_frac: float = 1.0


def _on_device(budget: Budget, device: DeviceTime | None) -> _Cost:
    if device is None:
        raise Abstain("no device activity was traced")
    starved = starved_ns(budget, device)
    measure = ns("device idle, waiting for a launch", device.launch_starved_ns, "trace")
    return _Cost(starved, starved, (measure,))


def _on_cpu(
    phases: Phases,
    ops: Ops | None,
    dispatch: Dispatch | None,
    loop: ModelLoop,
) -> _Cost | None:
    if ops is None:
        raise Abstain("torch calls were not counted (window ops)")
    if dispatch is None:
        raise Abstain("the fixed cost of a call was not measured on this machine")
    cost = cost_of(loop.lines, phases, ops, dispatch)
    if not cost.calls:
        return None
    # The counted steps may call it more or less often than the clean ones (an agent's episodes).
    to_clean = loop.calls / loop.counted
    least = cost.dispatch_ns * to_clean
    small, cell = cost.spent_ns <= FIXED_COST_FACTOR * least, bool(loop.sequence)
    if not (small or cell or loop.one_row):
        return None
    measures = (
        count("torch calls in the loop", cost.calls * to_clean, "ops", "per_step"),
        ns("the loop and its backward", cost.spent_ns, "baseline"),
        ns("least these calls cost on this machine", least, "probe"),
    )
    most = CELL_HIGH_FRAC if cell else 1.0 if small else WORKING_HIGH_FRAC
    return _Cost(cost.spent_ns, least, measures, most)


def _waits(loop: ModelLoop) -> bool:
    """Each call waits for a value read from the one before (an agent's action, a token)."""
    read = sum(conversions(loop.lines).values())
    return bool(read) and read >= MAJORITY_FRAC * loop.counted


def _advice(loop: ModelLoop, place: str) -> str:
    stack = f"Stack what {loop.name} is called with{place}, and call it once on the batch"
    if loop.sequence:
        return (
            f"nn.{loop.sequence} over the whole sequence instead of its cell in a loop{place}: one"
            f" call for its {loop.each:.0f} steps."
        )
    if not _waits(loop):
        return f"{stack}; if each call needs what the one before gave, torch.compile the loop."
    return (
        f"Step several environments or sequences at once and call {loop.name} on all of"
        f" their states{place}, if each call waits for a value read from the one before (an agent's"
        f" action, a decoder's token); else {stack[0].lower()}{stack[1:]}."
    )


def fires() -> Evidence:
    """An agent: every call waits for the action that the one before chose."""
    policy = module("Policy", 22, calls_per_step=120.0, trained_at=at(41, "act"))
    lines = ops(
        op_line(24, "forward", 600, grad_calls=600.0, turns=120.0, repeated=120.0, one_row=True),
        op_line(41, "forward", 240, conversions={"item": 120.0}, turns=120.0),
    )
    step = budget(forward=8, loss=1, backward=9, optimizer=1)
    clean = phases(forward=8, loss=1, backward=9, optimizer=1)
    return Evidence().add(
        step, clean, lines, Modules(modules=(policy,)), Dispatch(op_ns=1500, grad_op_ns=7000)
    )


def clear() -> Evidence:
    """A triplet: three calls of the embedding before one backward."""
    net = module("Embedding", 22, calls_per_step=3.0, trained_at=at(41, "step"))
    step = budget(forward=8, loss=1, backward=9, optimizer=1)
    clean = phases(forward=8, loss=1, backward=9, optimizer=1)
    lines = ops(op_line(24, "forward", 900, grad_calls=900.0, turns=3.0))
    return Evidence().add(
        step, clean, lines, Modules(modules=(net,)), Dispatch(op_ns=1500, grad_op_ns=7000)
    )
