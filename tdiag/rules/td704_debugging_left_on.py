"""Debugging switches left on

## What it measures
Switches found on at a step boundary: autograd's anomaly detection, a torch profiler, cProfile, a
debugger or coverage of the script's own, deterministic algorithms. For anomaly detection also what
it costs, from the calls that record gradients; for debuggers, the samples that fell into them.

## Why it is slow
Anomaly detection formats a Python stack for every call that records gradients and looks for NaN
after every backward function. Profilers and tracers do work for every call or every line.

## What to do
Keep such switches for the run in which something is sought, behind an option.

## How the gain is computed
Anomaly detection: calls that record gradients × its cost for each, as measured in the process and
as multiples of this machine's own cost of a call; and looking for NaN in each parameter's gradient,
by their number and size. Debuggers: their share of the samples. Where no
cost was measured, none is claimed.

## When this advice is wrong
Deterministic algorithms may be a requirement, for example for a published result.
"""

from __future__ import annotations

from tdiag.evidence.kinds import Budget, Dispatch, Flags, Modules, Ops, Optimizers, Stacks
from tdiag.evidence.store import Evidence
from tdiag.model.diagnosis import Fix, Measure
from tdiag.rules.base import Found, Gain
from tdiag.rules.examples import budget, flags, op_line, ops
from tdiag.rules.measures import count, frac, ns, text

CODE = "TD704"
NAME = "debugging-left-on"
CLASS = "overhead"

# A call that records gradients, backward included, costs 4.5 plain ones (7 against 1.6 µs in the
# same trial); what the probe measured beyond that, in the very process, is anomaly detection.
GRAD_CALL = 4.5
# Anomaly detection's cost of one call that records gradients, in plain torch.add calls: 27 from a
# shallow Python stack, 65 from one 15 frames deeper (43 and 102 µs against 1.6 µs, torch 2.13).
ANOMALY_CALLS_LOW = 27
ANOMALY_CALLS_HIGH = 65
# Looking for NaN in one gradient: two plain calls, and 3 to 4.5 ns for each of its numbers (50 and
# 400 parameters of 64 to 65,536 numbers, same trial); a core with caches of its own may need 1.
CHECK_CALLS = 2
CHECK_NS_LOW, CHECK_NS_HIGH = 1.0, 4.5
# Innermost frames of Python debuggers, tracers and coverage, as samples show them.
TRACER_FILES = ("bdb.py", "pdb.py", "pydevd", "coverage/", "trace.py", "hunter/")


def check(
    budget: Budget,
    flags: Flags,
    ops: Ops | None,
    dispatch: Dispatch | None,
    stacks: Stacks | None,
    optimizers: Optimizers | None,
    modules: Modules | None,
) -> Found | None:
    on = _switched_on(flags)
    if not on:
        return None
    low, high, evidence = _anomaly_cost(flags, ops, dispatch)
    if high and dispatch is not None:
        tensors = sum(one.tensors for one in optimizers.optimizers) if optimizers else 0
        numbers = sum(one.parameters for one in modules.modules) if modules else 0
        calls = tensors * CHECK_CALLS * dispatch.op_ns
        low, high = low + calls + numbers * CHECK_NS_LOW, high + calls + numbers * CHECK_NS_HIGH
        evidence.append(count("gradients looked at for NaN", tensors, "probe", "per_step"))
    traced = _traced_share(stacks) if flags.user_trace else 0.0
    low, high = low + traced * budget.step_ns, high + traced * budget.step_ns
    if traced:
        evidence.append(frac("samples inside the tracer", traced, "sample"))
    gain = None
    if high:
        why = (
            f"{ANOMALY_CALLS_LOW} to {ANOMALY_CALLS_HIGH} plain calls for each that records"
            " gradients, by the depth of the Python stack, or what was measured here; and looking"
            " for NaN in each parameter's gradient."
            if flags.anomaly_mode
            else "the tracer's share of the samples."
        )
        gain = Gain(low, high, why, ("forward", "loss", "backward", "optimizer", "launch", "other"))
    return Found(
        summary=f"Left on during training: {', '.join(on)}.",
        evidence=(*(text("switched on", name, "probe") for name in on), *evidence),
        fix=Fix(
            f"Switch off: {'; '.join(on.values())}.",
            "review" if flags.deterministic else "safe",
            "anomaly_off" if flags.anomaly_mode else None,
        ),
        gain=gain,
    )


def _switched_on(flags: Flags) -> dict[str, str]:
    """What is on → how to switch it off."""
    known = {
        "anomaly detection": (
            flags.anomaly_mode,
            "torch.autograd.set_detect_anomaly(False), or remove detect_anomaly()",
        ),
        "the script's own torch profiler": (
            flags.user_profiler,
            "the torch profiler outside a few scheduled steps (schedule(wait=…, active=…))",
        ),
        f"{flags.user_trace} of the script": (
            bool(flags.user_trace),
            f"{flags.user_trace} around the training loop",
        ),
        "deterministic algorithms": (
            flags.deterministic,
            "torch.use_deterministic_algorithms(False), unless results must repeat bit by bit",
        ),
    }
    return {name: off for name, (on, off) in known.items() if on}


def _anomaly_cost(
    flags: Flags, ops: Ops | None, dispatch: Dispatch | None
) -> tuple[float, float, list[Measure]]:
    if not flags.anomaly_mode or ops is None or dispatch is None:
        return 0.0, 0.0, []
    calls = sum(line.grad_calls for line in ops.lines)
    evidence = [
        count("calls that record gradients", calls, "ops", "per_step"),
        ns("cost of a plain call", dispatch.op_ns, "probe"),
    ]
    plain = calls * dispatch.op_ns
    measured = calls * max(0.0, dispatch.grad_op_ns - GRAD_CALL * dispatch.op_ns)
    evidence.append(ns("cost of a call with gradients", dispatch.grad_op_ns, "probe"))
    low = plain * ANOMALY_CALLS_LOW
    return low, max(low, measured, plain * ANOMALY_CALLS_HIGH), evidence


def _traced_share(stacks: Stacks | None) -> float:
    if stacks is None:
        return 0.0
    return sum(
        line.self_frac
        for line in stacks.training
        if any(name in line.leaf for name in TRACER_FILES)
    )


def fires() -> Evidence:
    step = budget(forward=6, loss=1, backward=9, optimizer=1)
    calls = ops(op_line(20, "forward", 80, grad_calls=76.0))
    return Evidence().add(
        step, flags(anomaly_mode=True), calls, Dispatch(op_ns=1500, grad_op_ns=7000)
    )


def clear() -> Evidence:
    """Torch as it comes."""
    return Evidence().add(budget(forward=6, loss=1, backward=9, optimizer=1), flags())
