"""Many calls too small to be worth launching

## What it measures
Device: idle time before kernels that start the moment they are launched, so launching is the limit.
Only time between ordinary launches counts. Before the first device work, or if the next launch
takes over ten times as long as usual, the host does something else: it preprocesses, creates the
context, loads a module, or captures a graph.
CPU: the time of forward and backward compared with the fixed cost of their torch calls, counted
exactly and timed on this machine. If most of the time goes to lines whose calls do work, only the
other lines count. Calls that take longer still count if they take less than 0.1 ms each, and the
work of the whole step, by its traced shapes, needs less than their fixed cost on this machine. Long
calls whose arithmetic is not known (sorting, random numbers) count as work. A Python loop in
forward is judged separately: by that fixed cost, or by how little of its time its traced shapes
need on this machine. If a step runs most of forward's lines at least a dozen times without a
backward of its own for each, the line is named through which these calls come, by the samples (the
tasks of a meta-learner). Loops over tensor values (TD501) and a model called in a loop (TD712) have
their own rules.

## Why it is slow
Python, dispatch and launch take the same few microseconds per call, however little data it touches.
With such small calls the hardware mostly waits for the next one.

## What to do
If most calls come from a Python loop of small calls, replace the loop by one expression, or compile
it if its rounds need each other. Otherwise give each call more work (a larger batch), or issue
fewer calls (`torch.compile`; on CUDA with `mode="reduce-overhead"`, which replays the step as one
graph). Compute at once what a step repeats and what does not depend on itself (`torch.func.vmap`).
An agent steps more environments at once. A step that accumulates gradients takes larger batches.

## How the gain is computed
With such a loop: at the high end its time and its backward are gone (up to four times other calls'
backward, where that was not measured by line); at the low end one call of eight stays and does the
work of all, in five times its least time. Where that is not known, seven eighths of the fixed costs
are gone. Without such a loop: high end a batch four times as large, which spreads the fixed costs
over four times the samples; low end half of the measured fixed costs (device: of the idle time), as
with a batch twice as large. If a step repeats its lines, the high end is one repetition instead of
all; if it accumulates more than four batches, one batch. If calls take longer than fixed costs
alone, the least time for the step's work remains. If it accumulates four batches or more, the low
end is one batch whose work takes five times its least time.

## When this advice is wrong
A larger batch needs another learning rate. Compiling pays only if shapes repeat.
"""

from __future__ import annotations

from tdiag.evidence.device import DeviceTime
from tdiag.evidence.feeding import Loader, Loaders
from tdiag.evidence.roofline import Roof, Work
from tdiag.evidence.sampled import CallTrees
from tdiag.evidence.steps import Budget, Phases
from tdiag.evidence.store import Evidence
from tdiag.evidence.torch_ops import Calls, Dispatch, OpLine, Ops
from tdiag.evidence.training import Flags, Modules
from tdiag.model.diagnosis import Fix, Measure
from tdiag.model.place import Place
from tdiag.model.threshold import MAJORITY_FRAC, Threshold
from tdiag.rules.base import Abstain, Found, Gain, count, ns, same_function, where
from tdiag.rules.callers import common_caller
from tdiag.rules.device_waits import ISSUING, issuing_cuts, starved_ns
from tdiag.rules.evaluation import acts
from tdiag.rules.examples import MS, budget, op_line, ops, phases
from tdiag.rules.fixed_cost import (
    FIXED_COST_FACTOR,
    LITTLE_WORK_FRAC,
    best_ns,
    best_of_step_ns,
    cost_of,
    fixed_cost,
    fixed_cost_of_small,
    merged_work,
)
from tdiag.rules.hooks import hooks_of, in_hook
from tdiag.rules.loops import LAYERS, MIN_LINE_CALLS, value_loops
from tdiag.rules.model_calls import MIN_MODEL_CALLS, ModelLoop, model_loop
from tdiag.rules.vectorised import rewriting
from tdiag.units import duration, per_step, percent

CODE = "TD701"
NAME = "launch-bound"
CLASS = "overhead"
AFTER = {
    "TD402": "a CUDA graph cannot capture shapes that depend on values",
    "TD401": "the device runs out of work at each synchronisation, whatever launches it",
    "TD719": "layers that take one input make many of the calls, whatever the batch",
    "TD724": "small passes make most of the calls, whatever the batch",
    "TD729": "derivatives of single elements make many of the calls, whatever the batch",
    "TD723": "each call waits for the interpreter that another thread holds",
}

LARGER_BATCH = Threshold(
    4, "times the batch", "Heuristic: two doublings of the batch are what the high end assumes."
)
DOUBLED_BATCH = Threshold(
    2, "times the batch", "By definition: one doubling is the smallest step up for the low end."
)
ACCUMULATED_WORK_FRAC = Threshold(
    0.4,
    "of their time",
    "By definition: calls that reach more of what the machine reaches are efficient"
    " (diagnose.efficiency.EFFICIENT_FRAC). Micro-batches that reach less become one batch without"
    " changing the training.",
)


def check(
    budget: Budget,
    phases: Phases | None,
    ops: Ops | None,
    dispatch: Dispatch | None,
    device: DeviceTime | None,
    loaders: Loaders | None,
    modules: Modules | None,
    flags: Flags | None,
    calls: Calls | None,
    trees: CallTrees | None,
    work: Work | None,
    roof: Roof | None,
) -> Found | None:
    agent = acts(flags, calls)
    loop = model_loop(modules, phases, ops, trees)
    loader = loaders.train() if loaders else None
    if not budget.has_device:
        hooks = hooks_of(trees)
        apart = [*value_loops(ops, modules, trees), *(loop.lines if loop else ())] if ops else []
        # TD207's, TD711's and TD719's.
        apart += [
            x
            for x in (ops.lines if ops else ())
            if x.constructs or in_hook(x, hooks) or x.shared >= MIN_LINE_CALLS
        ]
        looping = _in_a_loop(budget, phases, ops, dispatch, apart, work, roof, loop)
        best = best_of_step_ns(work, roof)
        return looping or _on_cpu(budget, phases, ops, dispatch, loader, apart, agent, best, trees)
    if device is None:
        raise Abstain("no device activity was traced")
    if loop:
        return None
    return _on_device(budget, device, loader, agent, _most_in_a_loop(ops, []) if ops else None)


def _in_a_loop(
    budget: Budget,
    phases: Phases | None,
    ops: Ops | None,
    dispatch: Dispatch | None,
    apart: list[OpLine],
    work: Work | None,
    roof: Roof | None,
    model: ModelLoop | None,
) -> Found | None:
    """A loop in forward whose calls do little work, unless most small calls are elsewhere."""
    fixed = fixed_cost(phases, ops, dispatch, apart)
    assert phases and ops and dispatch
    loop = [line for line in _loop(ops) if line not in apart]
    cost = cost_of(loop, phases, ops, dispatch)
    best = best_ns(loop, work, roof)
    if not cost.calls or not (cost.work <= FIXED_COST_FACTOR or cost.does_little(best)):
        return None
    others = fixed_cost_of_small(phases, ops, dispatch, [*apart, *loop])
    if fixed.work <= FIXED_COST_FACTOR and cost.spent_ns <= others.spent_ns:
        return None
    worst = max(loop, key=lambda line: line.elapsed_ns)
    chain = model.at if model and model.chained else None  # its loop may be elsewhere
    return Found(
        summary=(
            f"A Python loop in forward takes {per_step(cost.spent_ns, budget.step_ns)} with its"
            f" backward, most of it{where(worst.at)}: {cost.calls:.0f} torch calls of"
            f" {duration(cost.spent_ns / cost.calls)} that each do little work."
        ),
        evidence=(
            count("torch calls in the loop", cost.calls, "ops", "per_step"),
            ns("the loop and its backward", cost.spent_ns, "baseline"),
            ns("fixed cost of these calls on this machine", cost.dispatch_ns, "probe"),
            *(() if best is None else (ns("time their work needs at best", best, "trace"),)),
        ),
        fix=rewriting(loop, chained=chain is not None and same_function(chain, worst.at)),
        gain=Gain(
            cost.least_saved(1 / MIN_LINE_CALLS, best),
            cost.most_ns,
            f"high end: the loop is gone, with {cost.share.at_most}; low end: of every"
            f" {MIN_LINE_CALLS:.0f} calls one stays{merged_work(best)}.",
            ("forward", "backward"),
        ),
        at=worst.at,
    )


def _on_cpu(
    budget: Budget,
    phases: Phases | None,
    ops: Ops | None,
    dispatch: Dispatch | None,
    loader: Loader | None,
    apart: list[OpLine],
    agent: bool,
    best: float | None,
    trees: CallTrees | None,
) -> Found | None:
    """``best``: the least time for the work of the whole step, ns; None if unknown."""
    fixed = fixed_cost(phases, ops, dispatch, apart)
    assert phases and ops and dispatch
    micro = _micro_batches(phases)
    little = ACCUMULATED_WORK_FRAC if micro >= LARGER_BATCH else LITTLE_WORK_FRAC
    if not fixed.calls or not fixed.small(best, little):
        return None
    alone = fixed.work <= FIXED_COST_FACTOR
    small = fixed_cost_of_small(phases, ops, dispatch, apart)
    if alone and small.spent_ns < MAJORITY_FRAC * fixed.spent_ns:
        fixed = small  # the other lines' calls do work
    if not fixed.calls:
        return None
    compared = "little more than the fixed cost of a call"
    if not alone:
        compared = f"but the work of the whole step needs {duration(best or 0.0)} at best"
    few = "small " if fixed is small else ""
    times, repeated_at = _repeated(phases, ops, apart, trees)
    loop_at = None if times else _most_in_a_loop(ops, apart)
    high = fixed.spent_ns * (1 - 1 / (times or max(LARGER_BATCH, micro)))
    needed = 0.0 if alone or best is None else best  # remains, however it is divided
    gone = f"a batch {max(LARGER_BATCH, micro):.0f} times as large, per sample"
    if times:
        gone = f"the {times:.0f} repetitions are one"
    low, kept = fixed.dispatch_ns / DOUBLED_BATCH, "half of the fixed costs"
    if needed and micro >= LARGER_BATCH:
        low = fixed.least_saved(1 / micro, needed)
        kept = f"one batch{merged_work(needed)}"
    return Found(
        summary=(
            f"{'Small calls' if few else 'Forward and backward'} take"
            f" {per_step(fixed.spent_ns, budget.step_ns)} for {fixed.calls:.0f} torch calls:"
            f" {duration(fixed.spent_ns / fixed.calls)} per call, {compared}."
            + (f" Their lines run {times:.0f} times a step{where(repeated_at)}." if times else "")
            + (f" Most of them are made in a loop{where(loop_at)}." if loop_at else "")
        ),
        evidence=(
            count(f"{few}torch calls in forward", fixed.calls, "ops", "per_step"),
            ns(
                "small calls and their backward" if few else "forward and its backward",
                fixed.spent_ns,
                "baseline",
            ),
            ns("fixed cost of these calls on this machine", fixed.dispatch_ns, "probe"),
            *(() if alone else (ns("time the step's work needs at best", best or 0.0, "trace"),)),
        ),
        fix=_together(times, repeated_at)
        if times
        else _fix(loader, "default", agent, round(micro)),
        gain=Gain(
            low,
            max(low, min(high, fixed.spent_ns - needed)),
            f"high end: {gone}; low end: {kept}.",
            ("forward", "backward"),
        ),
        at=repeated_at or loop_at or (loader.created_at if loader and not times else None),
    )


def _micro_batches(phases: Phases) -> float:
    """The batches of which a step accumulates the gradients."""
    batches = phases.counts.get("data_wait", 0.0)
    return min(batches, phases.counts.get("backward", 0.0) - phases.grad_calls)


def _repeated(
    phases: Phases, ops: Ops, apart: list[OpLine], trees: CallTrees | None
) -> tuple[float, Place | None]:
    """How often a step runs the lines that take most of forward, and the line that they all come
    from; 0 if it runs them less often than a loop over elements would. Micro-batches with a
    backward each do not count: a larger batch has fewer."""
    backwards = max(1.0, phases.counts.get("backward", 0.0) - phases.grad_calls)
    lines = [x for x in ops.lines if x.phase == "forward" and x not in apart]
    often = [x for x in lines if x.turns >= MIN_MODEL_CALLS * backwards]
    most = MAJORITY_FRAC * sum(x.elapsed_ns for x in lines)
    if not often or sum(x.elapsed_ns for x in often) < most:
        return 0.0, None
    main = max(often, key=lambda x: x.elapsed_ns)
    return main.turns, common_caller({x.at.spot for x in often}, trees)


def _together(times: float, at: Place | None) -> Fix:
    return Fix(
        f"Compute what does not depend on each other at once{where(at)}: stack its inputs and call"
        " the model on all of them, or map the function over them with torch.func.vmap. If each"
        " needs the one before it, torch.compile what is repeated.",
        "review",
        action=f"Compute the {times:.0f} repetitions together",
        code="losses = torch.func.vmap(task_loss)(stacked_tasks)  # instead of one after the other",
    )


def _loop(ops: Ops) -> list[OpLine]:
    """Lines of the forward pass that loop over calls without weights. A loop over layers cannot be
    written as one expression."""
    return [x for x in _looping(ops) if not LAYERS & x.names.keys()]


def _looping(ops: Ops) -> list[OpLine]:
    lines = [x for x in ops.lines if x.phase == "forward" and x.in_loop and x.names]
    return [x for x in lines if max(x.names.values()) >= MIN_LINE_CALLS * x.turns]


def _most_in_a_loop(ops: Ops, apart: list[OpLine]) -> Place | None:
    """The line that takes longest of a function whose loops, over layers, too, make most of the
    calls in forward."""
    lines = [x for x in ops.lines if x.phase == "forward" and x not in apart]
    looping = [x for x in _looping(ops) if x not in apart]
    worst = max(looping, key=lambda x: x.elapsed_ns, default=None)
    if worst is None:
        return None
    of_it = sum(x.elapsed_ns for x in looping if same_function(x.at, worst.at))
    return worst.at if of_it > MAJORITY_FRAC * sum(x.elapsed_ns for x in lines) else None


def _on_device(
    budget: Budget, device: DeviceTime, loader: Loader | None, agent: bool, loop_at: Place | None
) -> Found | None:
    """``loop_at``: where most torch calls of forward are made, if in a loop."""
    starved = starved_ns(budget, device)
    if not starved:
        return None
    return Found(
        summary=(
            f"The device waits {duration(starved)} per step for launches"
            f" ({percent(starved / budget.step_ns)}): {device.kernels_per_step:.0f} kernels of"
            f" {duration(device.mean_kernel_ns)} on average."
            + (f" Most of forward is launched in a loop{where(loop_at)}." if loop_at else "")
        ),
        evidence=(
            ns("device idle, waiting for a launch", starved, "trace"),
            count("kernels", device.kernels_per_step, "trace", "per_step"),
            ns("mean kernel", device.mean_kernel_ns, "trace"),
            *_queued(device),
        ),
        fix=_fix(loader, "reduce-overhead", agent),
        gain=Gain(
            starved / DOUBLED_BATCH,
            starved,
            "high end: no kernel waits for its launch; low end: half of the idle time, as with a"
            " batch twice as large.",
            ISSUING,
            issuing_cuts(budget, starved, 1 / DOUBLED_BATCH),
            issuing_cuts(budget, starved, 0.0),
        ),
        at=loop_at or (loader.created_at if loader else None),
    )


def _queued(device: DeviceTime) -> tuple[Measure, ...]:
    if device.queue_depth is None:
        return ()
    return (count("kernels queued when one is launched", device.queue_depth, "trace"),)


def _fix(loader: Loader | None, mode: str, agent: bool, micro: int = 1) -> Fix:
    """``micro``: the batches whose gradients a step accumulates."""
    option = f', mode="{mode}"' if mode != "default" else ""
    action, larger = "Increase the batch size or compile the model", "Use a larger batch"
    if agent:
        action = "Step more environments at once or compile the model"
        larger = "Step more environments at once and call the model on all their states"
    elif loader is not None and loader.batch_size and micro > 1:
        size = loader.batch_size * micro
        action = "Accumulate fewer, larger batches or compile the model"
        larger = (
            f"A step accumulates {micro} batches of {loader.batch_size}{where(loader.created_at)}:"
            f" take one of {size}, or as large as memory allows, and divide the accumulation by as"
            " much"
        )
    elif loader is not None and loader.batch_size:
        size = int(loader.batch_size * LARGER_BATCH)
        action = f"Increase the batch size to {size} or compile the model"
        larger = (
            f"Use batch_size={size} instead of {loader.batch_size}{where(loader.created_at)} and"
            " adjust the learning rate"
        )
    return Fix(
        f"{larger}, so that each call does more work. Or issue fewer calls: torch.compile.",
        "review",
        "torch.compile",
        action=action,
        code=f"model = torch.compile(model{option})",
    )


def fires() -> Evidence:
    tiny = ops(
        op_line(20, "forward", 240, grad_calls=230.0), op_line(30, "loss", 1, grad_calls=1.0)
    )
    step = budget(prepare=0.1, forward=1.6, loss=0.1, backward=2.2, optimizer=0.6)
    clean = phases(prepare=0.1, forward=1.6, loss=0.1, backward=2.2, optimizer=0.6)
    return Evidence().add(step, clean, tiny, Dispatch(op_ns=1500, grad_op_ns=7000))


def clear() -> Evidence:
    """As many calls, but each is a large matrix product."""
    large = ops(op_line(20, "forward", 240, grad_calls=230.0, elapsed_ns=160 * MS))
    step = budget(forward=160, loss=1, backward=320, optimizer=6)
    clean = phases(forward=160, loss=1, backward=320, optimizer=6)
    return Evidence().add(step, clean, large, Dispatch(op_ns=1500, grad_op_ns=7000))
