"""The model is called in a loop

## What it measures
Calls of the same outermost module, or of a layer with the same weights, before one backward: at
least a dozen. Whether a call does enough work: on a CPU the time of the loop and its backward
against the fixed cost of their torch calls; on a device the idle time before kernels that start the
moment they are launched. Calls that do work count too if most of them get one sample, if they are
of one of torch's recurrent cells, or if they take over five times as long as their shapes need on
this machine (those of the whole step, where the loop's own are not known), or, where none needs
another's result, over twice as long. And which
calls need the result of an earlier one: every tensor is followed from call to call. The loop is the
user's innermost line that stays while these calls are made.

## Why it is slow
Python, dispatch, launch and reading the weights from memory cost the same for one sample as for a
batch. Called 32 times on one sample instead of once on 32, small models took 7 to 17 times as long,
an encoder and an LSTM 5 to 6 times, convolutions 1.0 to 2.3 times. Cells in a loop took up to
9.3 times as long as the whole sequence (an LSTM of 16 units), large ones no longer (torch 2.13, one
core).

## What to do
Stack the inputs and call the model once. If each call needs the result of the previous one: use the
module for whole sequences (`nn.LSTM`) instead of a cell (`nn.LSTMCell`); step several environments
(an agent) or sequences (a decoder) at once and call the model on all their states.

## How the gain is computed
The gain depends on how many calls become one (the batch, the sequence, or the number of
environments you choose) and on how much of a call is fixed cost, of which only the minimum is
measured: the cost of as many empty torch calls. So the low end is certain: half of that minimum if
calls wait for values read from the previous one (as with two environments), else all of it except
one call's share (device: of the idle time), or, of independent calls, all but five times what their
shapes need; for cells, the smallest measured gain of each call of one, or on a device the idle time
of all kernels but two for each call. High end: the time of all calls but one, with what the loop's
lines do for each of them; on a device the idle time, and if that is most of the step, what the
kernels take beyond their arithmetic; if calls do work, and for cells, the largest measured gain, or
what their shapes leave, beside cells with nearly all that the turn's other lines take; for a
recurrence with the gates of an LSTM, a GRU or a plain recurrent layer (by its sigmoids and
hyperbolic tangents), what torch's own leaves. To measure it, time a step with two, four and eight
at once: the time saved is 1/2, 3/4 and 7/8 of the fixed cost.

## When this advice is wrong
A recurrence over one sequence cannot be stacked: compile it. Stepping several environments or
sequences at once changes training: more samples per update, or shorter ones.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from tdiag.evidence.device import DeviceTime
from tdiag.evidence.roofline import Roof, Work
from tdiag.evidence.sampled import CallTrees
from tdiag.evidence.steps import Budget, Phases
from tdiag.evidence.store import Evidence
from tdiag.evidence.torch_ops import Calls, Dispatch, Ops
from tdiag.evidence.training import Flags, Modules
from tdiag.model.diagnosis import Fix, Measure
from tdiag.model.threshold import MAJORITY_FRAC, Threshold
from tdiag.rules.base import Abstain, Found, Gain, count, ns, same_function, where
from tdiag.rules.callers import inclusive_of_lines
from tdiag.rules.cells import LEFT, saved_by_sequence
from tdiag.rules.device_waits import ISSUING, ISSUING_TAGS, issuing_cuts, joined_cuts, starved_ns
from tdiag.rules.evaluation import rolls_out
from tdiag.rules.examples import at, budget, module, op_line, ops, phases
from tdiag.rules.fixed_cost import (
    FIXED_COST_FACTOR,
    LITTLE_WORK_FRAC,
    best_ns,
    best_of_step_ns,
    cost_of,
)
from tdiag.rules.loops import conversions
from tdiag.rules.model_calls import ModelLoop, model_loop
from tdiag.rules.thresholds import LOW_END_FRAC
from tdiag.units import duration, percent

CODE = "TD712"
NAME = "model-called-in-a-loop"
CLASS = "overhead"
UNTRIED = "a call's input may depend on the call before it"

WORKING_HIGH = Threshold(
    17.3,
    "times as fast",
    "Measured, one call on 32 samples instead of 32 calls on one, torch 2.13, one core: the most,"
    " with two Linear(32) (benchmarks/rule_constants.py td712).",
)
KERNELS_LEFT = Threshold(
    2,
    "kernels for each call",
    "Heuristic: one in forward and one in backward. On an H200 two layers of LSTM cells over 128"
    " steps got 12 times as fast in one call, for which this gives 5.7 at least"
    " (docs/gpu-validation.md).",
)
# Phases of the loop's lines: a criterion called in it belongs to the loss.
PHASES = ("forward", "loss")


def check(
    budget: Budget,
    phases: Phases,
    modules: Modules,
    ops: Ops | None,
    dispatch: Dispatch | None,
    device: DeviceTime | None,
    work: Work | None,
    roof: Roof | None,
    trees: CallTrees | None,
    flags: Flags | None,
    counted: Calls | None,
) -> Found | None:
    loop = model_loop(modules, phases, ops, trees)
    if loop is None:
        return None
    if budget.has_device:
        cost: _Cost | None = _on_device(budget, device, loop)
    else:
        cost = _on_cpu(phases, ops, dispatch, loop, work, roof)
    if cost is None or not cost.spent_ns:
        return None
    spent = cost.spent_ns
    name, place = loop.name, where(loop.at)
    left = loop.fewest / loop.each
    most, gone = min(1 - left, cost.most_frac), f"{_calls(loop.fewest)} instead of {loop.each:.0f}"
    if most == cost.most_frac:
        gone = f"{percent(most)} of the calls' time, {cost.limit}"
    best = _at_best(budget, spent, loop, ops, work, roof, left) if budget.has_device else {}
    if best.keys() - ISSUING_TAGS:
        gone = f"{gone}, whose kernels take what their arithmetic needs"
    high = spent * most
    parts: tuple[str, ...] = (*PHASES, "backward")
    lines_ns = 0.0 if budget.has_device else _done_for_each(loop, ops, trees) * budget.step_ns
    if (cost.most_frac == 1 or loop.acts) and lines_ns * most > high:
        # What is done with each call's result, an action drawn and read, is then done once, too.
        high, parts = lines_ns * most, (*parts, "prepare", "evaluation")
        gone = f"{gone}, with all that is done for each ({duration(lines_ns)} of samples)"
    least, kept = cost.least_ns * LOW_END_FRAC, "half of the fixed costs"
    if loop.sequence and budget.has_device:
        least, kept = cost.least_ns, "of each call's kernels one in forward and one in backward"
    elif loop.sequence:
        least, kept = cost.least_ns, "the smallest gain measured for a sequence"
    elif not budget.has_device and not _waits(loop) and not loop.chained:
        least, kept = cost.least_ns * (1 - left), "the fixed costs of the other calls"
        poorly = spent * (1 - left) - cost.best_ns / LITTLE_WORK_FRAC
        if poorly > least:
            least = poorly
            kept = f"the other calls, less their work at {percent(LITTLE_WORK_FRAC)} of the best"
    return Found(
        summary=(
            f"{name} is called {loop.calls:.0f} times per step with the same weights{place}:"
            f" {duration(spent / loop.calls)} per {'turn' if loop.sequence else 'call'} with its"
            " backward,"
            f" {percent(spent / budget.step_ns)} of the step.{_dependence(loop)}"
        ),
        evidence=(
            count(f"calls of {name}", loop.calls, "baseline", "per_step"),
            count("calls before each backward", loop.each, "baseline"),
            *(
                (count("that need no earlier one's result", loop.series, "ops"),)
                * (loop.series > 0)
            ),
            *cost.measures,
        ),
        fix=_fix(loop, place),
        gain=Gain(
            min(least, spent * most),
            high,
            f"low end: {kept}; high end: {gone}.",
            (*ISSUING, "compute") if budget.has_device else parts,
            issuing_cuts(budget, spent, 1 - least / spent) if budget.has_device else {},
            best,
        ),
        at=loop.at,
        cls="rollout" if loop.acts and rolls_out(phases, flags, counted) else "",
    )


@dataclass(frozen=True)
class _Cost:
    """Per step, ns: the calls' cost, and the part of it that is certainly fixed cost (of cells:
    that one call on the sequence surely saves); ``most_frac``: the share of it that a single call
    on everything can save, and why no more; ``best_ns``: the least time for their work."""

    spent_ns: float
    least_ns: float
    measures: tuple[Measure, ...]
    most_frac: float = 1.0
    limit: str = "the largest measured gain"
    best_ns: float = math.inf


def _on_device(budget: Budget, device: DeviceTime | None, loop: ModelLoop) -> _Cost:
    """A sequence in one call may still issue ``KERNELS_LEFT`` for each of its steps."""
    if device is None:
        raise Abstain("no device activity was traced")
    starved = starved_ns(budget, device)
    measure = ns("device idle, waiting for a launch", starved, "trace")
    least = starved
    if loop.sequence:
        kernels = max(1.0, device.kernels_per_step)
        left = min(1 - LOW_END_FRAC, KERNELS_LEFT * loop.calls / kernels)
        least = starved * (1 - left)
    return _Cost(starved, least, (measure,))


def _at_best(
    budget: Budget,
    starved: float,
    loop: ModelLoop,
    ops: Ops | None,
    work: Work | None,
    roof: Roof | None,
    left: float,
) -> dict[str, float]:
    """The factors of a replay without the idle time, and with kernels that do the work of many."""
    lines = [x for x in ops.lines if x.phase in PHASES] if ops else []
    whole = sum(x.elapsed_ns for x in lines)
    share = min(1.0, sum(x.elapsed_ns for x in loop.lines) / whole) if whole else 0.0
    cuts = issuing_cuts(budget, starved, left)
    return cuts | joined_cuts(budget, work, roof, starved, share * (1 - left))


def _on_cpu(
    phases: Phases,
    ops: Ops | None,
    dispatch: Dispatch | None,
    loop: ModelLoop,
    work: Work | None,
    roof: Roof | None,
) -> _Cost | None:
    if ops is None:
        raise Abstain("torch calls were not counted (window ops)")
    if dispatch is None:
        raise Abstain("the fixed cost of a call was not measured on this machine")
    cost = cost_of(loop.lines, phases, ops, dispatch)
    if not cost.calls:
        return None
    # The counted steps may call it more or less often than clean ones (an agent's episodes).
    to_clean = loop.calls / loop.counted
    least = cost.dispatch_ns * to_clean
    small, cell = cost.spent_ns <= FIXED_COST_FACTOR * least, bool(loop.sequence)
    best = best_ns(loop.lines, work, roof)
    if best is None:  # not more than the whole step's
        best = best_of_step_ns(work, roof)
    needed = 1.0 if best is None else best / cost.spent_ns
    known = small or cell or loop.one_row or cost.does_little(best)
    if not known and (loop.series <= 1 or needed >= MAJORITY_FRAC):
        return None
    at_best = () if best is None or cell else (ns("their work at best", best, "trace"),)
    measures = (
        count("torch calls in the loop", cost.calls * to_clean, "ops", "per_step"),
        ns("the loop and its backward", cost.spent_ns, "baseline"),
        ns("fixed cost of these calls on this machine", least, "probe"),
        *at_best,
    )
    if cell:
        lines, calls = loop.of_cells
        cells = cost_of(lines, phases, ops, dispatch)
        low, high = saved_by_sequence(loop.sequence, calls * to_clean, cells.spent_ns, dispatch)
        # What is done beside the cells, for each step of the sequence, is then done once.
        high += cells.dispatch_ns * to_clean
        high += (cost.spent_ns - cells.spent_ns) * (1 - 1 / WORKING_HIGH)
        return _Cost(cost.spent_ns, low, measures, min(1.0, high / cost.spent_ns))
    if loop.written_out:
        left = LEFT[loop.written_out] * loop.calls * dispatch.op_ns
        most, limit = max(0.0, 1 - left / cost.spent_ns), f"as nn.{loop.written_out} takes the rest"
        return _Cost(cost.spent_ns, least, measures, most, limit)
    most = 1.0 if small else 1 - 1 / WORKING_HIGH
    if not known and 1 - needed < most:
        return _Cost(cost.spent_ns, least, measures, 1 - needed, "which is not their work")
    little = best if best is not None and cost.does_little(best) else math.inf
    return _Cost(cost.spent_ns, least, measures, most, best_ns=little)


def _waits(loop: ModelLoop) -> bool:
    """Whether each call waits for a value read from the previous one (an agent's action, a
    token)."""
    read = sum(conversions(loop.lines).values())
    return bool(read) and read >= MAJORITY_FRAC * loop.counted


def _done_for_each(loop: ModelLoop, ops: Ops | None, trees: CallTrees | None) -> float:
    """Share of the samples in the line that calls the model, and in the lines of its function that
    make other torch calls as often: they make the call's input, and draw and read an action."""
    if loop.at is None:
        return 0.0
    spots = {loop.at.spot}
    for line in ops.lines if ops else ():
        if same_function(line.at, loop.at) and line.turns >= MAJORITY_FRAC * loop.counted:
            spots.add(line.at.spot)
    return inclusive_of_lines(spots, trees)


def _calls(number: float) -> str:
    return "one call" if round(number) == 1 else f"{number:.0f} calls"


def _dependence(loop: ModelLoop) -> str:
    if loop.chained:
        return " Each call needs the result of the one before it."
    if loop.series < 2:
        return ""
    if round(loop.fewest) == 1:
        return " None needs another's result."
    begun = f"{loop.series:.0f} of the {loop.each:.0f}"
    return f" {begun} need no earlier one's result: they could be one."


def _fix(loop: ModelLoop, place: str) -> Fix:
    each = f"{loop.each:.0f}"
    if loop.sequence:
        return Fix(
            f"Replace the loop over the cell{place} by one call of nn.{loop.sequence} for its"
            f" {each} steps.",
            "review",
            action=f"Call nn.{loop.sequence} once on the whole sequence",
            code=f"rnn = torch.nn.{loop.sequence}(input_size, hidden_size)  # not the cell\n"
            "outputs, state = rnn(sequence)  # all steps at once",
        )
    if loop.written_out and not _waits(loop):
        module = f"nn.{loop.written_out}"
        return Fix(
            f"If the gates{place} are those of {module}, call it once for the {each} steps."
            " Otherwise torch.compile what is repeated.",
            "review",
            action=f"Call {module} once on the whole sequence",
            code=f"rnn = torch.{module}(input_size, hidden_size)  # not written out\n"
            "outputs, state = rnn(sequence)  # all steps at once",
        )
    if loop.chained and not _waits(loop):
        return Fix(
            f"torch.compile what is repeated{place}, or compute more sequences at once: each call"
            f" of {loop.name} needs the result of the one before it.",
            "review",
            action="Compile the loop, or compute more sequences at once",
            code="step = torch.compile(step)  # the body of the loop, as a function",
        )
    if not _waits(loop) or loop.series > 1:
        otherwise = ""
        if not loop.series:
            otherwise = (
                " If each call needs the result of the previous one, torch.compile the loop."
            )
        times = "once" if round(loop.fewest) == 1 else f"{loop.fewest:.0f} times"
        return Fix(
            f"Stack the inputs of {loop.name}{place} and call it {times} on the batch.{otherwise}",
            "review",
            action=f"Call the model {times} instead of {each} times",
            code="batch = torch.stack(inputs)  # the inputs of all calls\noutputs = model(batch)",
        )
    return Fix(
        f"If each call of {loop.name}{place} waits for a value read from the previous one (an"
        " agent's action, a decoder's token), step several environments or sequences at once and"
        " call it on all their states. Otherwise stack its inputs and call it once.",
        "review",
        action="Call the model on several states at once",
        code="actions = model(torch.stack(states))  # one call for all environments",
    )


def fires() -> Evidence:
    """An agent: every call waits for the action that the previous one chose."""
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
