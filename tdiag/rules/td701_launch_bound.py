"""Many calls too small to be worth launching

## What it measures
On a device: idle time before kernels that start the moment they are launched, so that launching
is what everything waits for. On a CPU: the time of forward and backward against the fixed cost of
their torch calls, counted exactly and priced on this machine. Where most of the time goes to lines
whose calls work, only the others' time counts. Loops over tensor values have a rule of their own
(TD501), and so has a model that is called in a loop (TD712).

## Why it is slow
Python, dispatch and launch take the same few microseconds for every call, however little data it
touches. When calls are that small the hardware mostly waits for the next one.

## What to do
Where most of the calls come from a Python loop of small calls, say it as one expression. Else give
every call more work (a larger batch), or issue fewer (`torch.compile`, on CUDA with
`mode="reduce-overhead"`, which replays the step as one graph).

## How the gain is computed
High end: the loop's share of the calls is gone; without such a loop, a batch four times as large
spreads the fixed costs over four times the samples. Low end: half of the measured floor of the
fixed costs (device: of the starved time), as with a batch twice as large.

## When this advice is wrong
A larger batch changes the optimisation and wants another learning rate. Compiling pays only if
shapes repeat.
"""

from __future__ import annotations

from tdiag.evidence.data import Loader, Loaders
from tdiag.evidence.device import DeviceTime
from tdiag.evidence.kinds import Budget, Dispatch, Modules, OpLine, Ops, Phases
from tdiag.evidence.store import Evidence
from tdiag.model.diagnosis import Fix, Measure
from tdiag.rules.base import Abstain, Found, Gain, where
from tdiag.rules.examples import MS, budget, op_line, ops, phases
from tdiag.rules.fixed_cost import FIXED_COST_FACTOR, fixed_cost, fixed_cost_of_small
from tdiag.rules.loops import LAYERS, MIN_LINE_CALLS, rewriting, value_loops
from tdiag.rules.measures import count, ns
from tdiag.rules.model_calls import model_loop
from tdiag.rules.starved import ISSUING, ISSUING_TAGS, starved_ns
from tdiag.units import duration, percent

CODE = "TD701"
NAME = "launch-bound"
CLASS = "overhead"
AFTER = {
    "TD402": "a graph cannot be captured across shapes that depend on values",
    "TD401": "the device runs dry at each synchronisation, however it is launched",
}

# A batch so many times as large is what the high end assumes; ours.
LARGER_BATCH = 4
# And so many times the low end.
DOUBLED_BATCH = 2
# By definition of "mostly": the larger half of the calls.
MAJORITY_FRAC = 0.5


def check(
    budget: Budget,
    phases: Phases | None,
    ops: Ops | None,
    dispatch: Dispatch | None,
    device: DeviceTime | None,
    loaders: Loaders | None,
    modules: Modules | None,
) -> Found | None:
    loop = model_loop(modules, phases, ops)
    loader = loaders.train() if loaders else None
    if not budget.has_device:
        apart = [*value_loops(ops, modules), *(loop.lines if loop else ())] if ops else []
        return _on_cpu(budget, phases, ops, dispatch, loader, apart)
    if device is None:
        raise Abstain("no device activity was traced")
    if loop:
        return None
    return _on_device(budget, device, loader)


def _on_cpu(
    budget: Budget,
    phases: Phases | None,
    ops: Ops | None,
    dispatch: Dispatch | None,
    loader: Loader | None,
    apart: list[OpLine],
) -> Found | None:
    fixed = fixed_cost(phases, ops, dispatch, apart)
    if not fixed.calls or fixed.work > FIXED_COST_FACTOR:
        return None
    assert phases and ops and dispatch
    small = fixed_cost_of_small(phases, ops, dispatch, apart)
    if small.spent_ns < MAJORITY_FRAC * fixed.spent_ns:
        fixed = small  # the others work
    if not fixed.calls:
        return None
    per_call = fixed.spent_ns / fixed.calls
    loop = [line for line in _loop(ops) if line not in apart]
    looped = sum(line.calls for line in loop) / fixed.calls
    if looped <= MAJORITY_FRAC:
        loop, looped = [], 0.0
    few = "small " if fixed is small else ""
    spread = f"high end: batch × {LARGER_BATCH}, per sample"
    gone = f"high end: the loop's {percent(looped)} of the calls gone"
    return Found(
        summary=(
            f"{'Small calls' if few else 'Forward and backward'} take"
            f" {duration(fixed.spent_ns)} a step"
            f" ({percent(fixed.spent_ns / budget.step_ns)}) for {fixed.calls:.0f} torch calls:"
            f" {duration(per_call)} a call, which is little more than calling costs."
        ),
        evidence=(
            count(f"{few}torch calls in forward", fixed.calls, "ops", "per_step"),
            ns(
                "small calls and their backward" if few else "forward and its backward",
                fixed.spent_ns,
                "baseline",
            ),
            ns("least these calls cost on this machine", fixed.dispatch_ns, "probe"),
        ),
        fix=Fix(rewriting(loop) if loop else _advice(loader, "compile"), "review", "compile"),
        gain=Gain(
            fixed.dispatch_ns / DOUBLED_BATCH,
            fixed.spent_ns * max(looped, 1 - 1 / LARGER_BATCH),
            f"{gone if loop else spread}; low end: half of the fixed costs.",
            ("forward", "backward"),
        ),
        at=loop[0].at if loop else loader.created_at if loader else None,
    )


def _loop(ops: Ops) -> list[OpLine]:
    """Lines of the forward pass that loop over calls without weights of their own, busiest first:
    a loop over layers cannot be said as one expression."""
    lines = [x for x in ops.lines if x.phase == "forward" and x.in_loop and x.names]
    small = [
        x
        for x in lines
        if max(x.names.values()) >= MIN_LINE_CALLS * x.turns and not LAYERS & x.names.keys()
    ]
    return sorted(small, key=lambda line: -line.calls)


def _on_device(budget: Budget, device: DeviceTime, loader: Loader | None) -> Found | None:
    starved = starved_ns(budget, device)
    if not starved:
        return None
    return Found(
        summary=(
            f"The device waits for launches {duration(starved)} a step"
            f" ({percent(starved / budget.step_ns)}): {device.kernels_per_step:.0f} kernels of"
            f" {duration(device.mean_kernel_ns)} on average."
        ),
        evidence=(
            ns("device idle, waiting for a launch", device.launch_starved_ns, "trace"),
            count("kernels", device.kernels_per_step, "trace", "per_step"),
            ns("mean kernel", device.mean_kernel_ns, "trace"),
            *_queued(device),
        ),
        fix=Fix(_advice(loader, "reduce-overhead"), "review", "compile"),
        gain=Gain(
            starved / DOUBLED_BATCH,
            starved,
            "high end: no kernel waits for its launch; low end: half of the idle time, as with a"
            " doubled batch.",
            ISSUING,
            dict.fromkeys(ISSUING_TAGS, 1 / DOUBLED_BATCH),
            dict.fromkeys(ISSUING_TAGS, 0.0),
        ),
        at=loader.created_at if loader else None,
    )


def _queued(device: DeviceTime) -> tuple[Measure, ...]:
    if device.queue_depth is None:
        return ()
    return (count("kernels queued when one is launched", device.queue_depth, "trace"),)


def _advice(loader: Loader | None, mode: str) -> str:
    compile_ = "torch.compile(model)"
    if mode == "reduce-overhead":
        compile_ = 'torch.compile(model, mode="reduce-overhead")'
    if loader is None or not loader.batch_size:
        return f"Give each call more work with a larger batch, or issue fewer: {compile_}."
    larger = loader.batch_size * LARGER_BATCH
    return (
        f"Give each call more work: batch_size={larger} instead of {loader.batch_size}"
        f"{where(loader.created_at)}, with a matching learning rate; or issue fewer: {compile_}."
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
