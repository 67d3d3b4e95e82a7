"""Debugging switches are on during training

## What it measures
Switches that are on at a step boundary: autograd's anomaly detection, a torch profiler, cProfile, a
debugger or coverage run by the script, deterministic algorithms. For anomaly detection also its
cost, from the calls that record gradients; for debuggers, the samples inside them.

## Why it is slow
Anomaly detection formats a Python stack for every call that records gradients and checks for NaN
after every backward function. Profilers and tracers do work for every call or line.

## What to do
Put such switches behind an option, and use them only in a run that looks for an error.

## How the gain is computed
Anomaly detection: calls that record gradients × its cost per call, measured in the process and as
multiples of this machine's own call cost, plus the NaN check of each parameter's gradient, by
number and size. Debuggers: their share of the samples. Where no cost was measured, none is claimed.

## When this advice is wrong
Deterministic algorithms may be required, for example for a published result.
"""

from __future__ import annotations

from tdiag.evidence.ops import Dispatch, Ops
from tdiag.evidence.sampled import Stacks
from tdiag.evidence.steps import Budget
from tdiag.evidence.store import Evidence
from tdiag.evidence.training import Flags, Modules, Optimizers
from tdiag.model.diagnosis import Fix, Measure
from tdiag.model.threshold import Threshold
from tdiag.rules.base import Found, Gain
from tdiag.rules.examples import budget, flags, op_line, ops
from tdiag.rules.measures import count, frac, ns, text

CODE = "TD704"
NAME = "debugging-left-on"
CLASS = "overhead"

_MEASURED = "Measured on a CPU with torch 2.13, where a plain torch.add took 1.6 µs:"
GRAD_CALL = Threshold(
    4.5,
    "plain calls",
    f"{_MEASURED} a call that records gradients, with its backward, took 7 µs. What the probe"
    " measures beyond that is anomaly detection.",
)
ANOMALY_CALLS_LOW = Threshold(
    27, "plain calls per call with gradients", f"{_MEASURED} 43 µs from a shallow Python stack."
)
ANOMALY_CALLS_HIGH = Threshold(
    65, "plain calls per call with gradients", f"{_MEASURED} 102 µs from a stack 15 frames deeper."
)
CHECK_CALLS = Threshold(
    2, "plain calls per gradient", f"{_MEASURED} the fixed cost of checking one gradient for NaN."
)
CHECK_NS_LOW = Threshold(
    1.0,
    "ns per number",
    "Heuristic: a core with its own caches may be three times as fast as the measured one.",
)
CHECK_NS_HIGH = Threshold(
    4.5,
    "ns per number",
    f"{_MEASURED} 3 to 4.5 ns per number (50 and 400 parameters of 64 to 65,536 numbers).",
)
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
        evidence.append(count("gradients checked for NaN", tensors, "probe", "per_step"))
    traced = _traced_share(stacks) if flags.user_trace else 0.0
    low, high = low + traced * budget.step_ns, high + traced * budget.step_ns
    if traced:
        evidence.append(frac("samples inside the tracer", traced, "sample"))
    gain = None
    if high:
        why = (
            f"{ANOMALY_CALLS_LOW} to {ANOMALY_CALLS_HIGH} plain calls for each call that records"
            " gradients, by the depth of the Python stack, or what was measured here; plus the NaN"
            " check of each parameter's gradient."
            if flags.anomaly_mode
            else "the tracer's share of the samples."
        )
        gain = Gain(low, high, why, ("forward", "loss", "backward", "optimizer", "launch", "other"))
    return Found(
        summary=f"Switched on during training: {', '.join(on)}.",
        evidence=(*(text("switched on", name, "probe") for name in on), *evidence),
        fix=Fix(
            " ".join(on.values()),
            "review" if flags.deterministic else "safe",
            "torch.anomaly=off" if flags.anomaly_mode else None,
            action=f"Switch off {next(iter(on))}",
            code="torch.autograd.set_detect_anomaly(False)" if flags.anomaly_mode else "",
        ),
        gain=gain,
    )


def _switched_on(flags: Flags) -> dict[str, str]:
    """What is on → how to switch it off, a sentence."""
    known = {
        "anomaly detection": (
            flags.anomaly_mode,
            "Call torch.autograd.set_detect_anomaly(False), or remove detect_anomaly().",
        ),
        "the script's own torch profiler": (
            flags.user_profiler,
            "Run the torch profiler for a few scheduled steps only (schedule(wait=...,"
            " active=...)).",
        ),
        f"{flags.user_trace} of the script": (
            bool(flags.user_trace),
            f"Remove {flags.user_trace} from the training loop.",
        ),
        "deterministic algorithms": (
            flags.deterministic,
            "Call torch.use_deterministic_algorithms(False), unless results must repeat bit by"
            " bit.",
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
    """Torch's defaults."""
    return Evidence().add(budget(forward=6, loss=1, backward=9, optimizer=1), flags())
