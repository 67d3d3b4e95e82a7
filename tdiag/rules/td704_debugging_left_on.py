"""Debugging switches are on during training

## What it measures
Switches that are on at a step boundary: autograd's anomaly detection, a torch profiler, cProfile, a
debugger or coverage run by the script, deterministic algorithms; and the line that switched each
on. For anomaly detection also its cost, from the calls that record gradients; for the torch
profiler, the samples in its own functions, and the time that recording adds to one torch call; for
debuggers, the samples inside them. The cost of cProfile is not measured.

## Why it is slow
Anomaly detection formats a Python stack for every call that records gradients and for every
parameter, and checks for NaN after every backward function. Profilers and tracers do work for every
call or line.

## What to do
Put such switches behind an option, and use them only in a run that searches for an error.

## How the gain is computed
Anomaly detection: calls that record gradients, or the traced nodes of the graph if these are more,
× its cost per call, measured in the process, as multiples of this machine's own call cost, and as
what traced views took, which do no work; plus the NaN checks, as traced or of each parameter's
gradient, by number and size; at the high end also a stack for each parameter, which torch formats
unless the last step's loss is still alive. At most the time of these calls and of backward. The
torch profiler: its share of the samples, plus the torch calls × the measured time to record one.
Debuggers: their share of the samples. If no cost was measured, none is claimed.

## When this advice is wrong
Deterministic algorithms may be required, for example for a published result.
"""

from __future__ import annotations

import ast
import math
from dataclasses import dataclass, replace

from msgspec.structs import replace as with_fields

from tdiag.evidence.sampled import StackLine, Stacks
from tdiag.evidence.steps import Budget, Phases
from tdiag.evidence.store import Evidence
from tdiag.evidence.torch_ops import Dispatch, HostOps, Ops
from tdiag.evidence.training import PROFILERS, Flags, Modules, Optimizers, Settings
from tdiag.model.diagnosis import Fix, Measure
from tdiag.model.place import Place
from tdiag.model.threshold import MAJORITY_FRAC, Threshold
from tdiag.rules.base import Found, Gain, count, frac, known_to, ns, text, where
from tdiag.rules.examples import budget, flags, op_line, ops
from tdiag.rules.syntax import tree_of
from tdiag.rules.thresholds import LOW_END_FRAC, MIN_SAMPLES

CODE = "TD704"
NAME = "debugging-left-on"
CLASS = "overhead"

_MEASURED = "Measured on a CPU with torch 2.13, where a plain torch.add took 1.6 µs:"
GRAD_CALL = Threshold(
    4.5,
    "plain calls",
    f"{_MEASURED} a call that records gradients, with its backward, took 7 µs. What the probe"
    " measures beyond that is anomaly detection (benchmarks/rule_constants.py td704).",
)
ANOMALY_CALLS_LOW = Threshold(
    27,
    "plain calls per call with gradients",
    f"{_MEASURED} 43 µs from a shallow Python stack (benchmarks/rule_constants.py td704).",
)
ANOMALY_CALLS_HIGH = Threshold(
    65,
    "plain calls per call with gradients",
    f"{_MEASURED} 102 µs from a stack 15 frames deeper (benchmarks/rule_constants.py td704).",
)
LEAF_CALLS_LOW = Threshold(
    19,
    "plain calls per parameter tensor",
    f"{_MEASURED} anomaly detection formats a stack for the node that takes a parameter's gradient,"
    " too, which a forward makes anew unless the last loss is still alive: 19 to 62 plain calls,"
    " from a shallow stack and from one 15 frames deeper (benchmarks/rule_constants.py td704).",
)
LEAF_CALLS_HIGH = Threshold(
    62,
    "plain calls per parameter tensor",
    "The same measurement: from a stack 15 frames deeper (benchmarks/rule_constants.py td704).",
)
CHECK_CALLS_LOW = Threshold(
    2,
    "plain calls per gradient",
    f"{_MEASURED} the fixed cost of checking one gradient for NaN was 2, on another machine 3.1 to"
    " 5.9 with 50 to 400 gradients (benchmarks/rule_constants.py td704).",
)
CHECK_CALLS_HIGH = Threshold(
    6,
    "plain calls per gradient",
    "The same measurement: the most (benchmarks/rule_constants.py td704).",
)
CHECK_NS_LOW = Threshold(
    1.0,
    "ns per number",
    "Heuristic: a core with its own caches may be three times as fast as the measured one.",
)
CHECK_NS_HIGH = Threshold(
    4.5,
    "ns per number",
    f"{_MEASURED} 3 to 4.5 ns per number (50 and 400 parameters of 64 to 65,536 numbers); 4.8 to"
    " 6.3 next to busy neighbours, where a plain torch.add took 1.7 times as long"
    " (benchmarks/rule_constants.py td704).",
)
MIN_VIEWS = Threshold(
    8, "views per step", "Heuristic: the mean of fewer may be that of one that did not record."
)
ASKS = "detect_anomaly"  # Lightning's option
# As traces name them: the engine's events around a node, parameters' own nodes, views, and what
# torch.isnan(gradient).any() consists of.
NODE, LEAF = "autograd::engine::evaluate_function: ", "AccumulateGrad"
VIEWS = ("aten::view", "aten::t", "aten::transpose", "aten::permute", "aten::expand")
CHECKS = ("aten::ne", "aten::any")
# Innermost frames of torch's profilers while they start, stop and read their events.
TORCHS_PROFILER = (
    "(profiler/profiler.py)", "(autograd/profiler.py)", "(autograd/profiler_util.py)",
    "(autograd/profiler_legacy.py)", "(profiler/_memory_profiler.py)",
)  # fmt: skip
# Innermost frames of Python debuggers, tracers and coverage, as samples show them.
TRACER_FILES = ("bdb.py", "pdb.py", "pydevd", "coverage/", "trace.py", "hunter/")
EVENTS_OF_A_CALL = Threshold(
    6.0,
    "events",
    "Counted in traces of three small trainings with torch 2.13: 4.3 to 5.7 ops, nested ones"
    " included, for each one that Python or backward called.",
)
# The budget components in which they take their time: the whole step except waiting.
COMPONENTS = (
    "prepare", "forward", "loss", "backward", "optimizer", "launch", "other", "unattributed",
)  # fmt: skip


@dataclass(frozen=True)
class _Switch:
    """A switch that is on. ``off``: how to switch it off. ``low_ns``, ``high_ns``: its cost per
    step, and ``why``; both 0 if that was not measured. ``change``: the change that switches it off
    in a trial, "" for none."""

    name: str
    off: str
    at: Place | None = None
    low_ns: float = 0.0
    high_ns: float = 0.0
    why: str = ""
    evidence: tuple[Measure, ...] = ()
    change: str = ""


def check(
    budget: Budget,
    flags: Flags,
    ops: Ops | None,
    dispatch: Dispatch | None,
    stacks: Stacks | None,
    optimizers: Optimizers | None,
    modules: Modules | None,
    settings: Settings | None,
    phases: Phases | None,
    host_ops: HostOps | None,
) -> Found | None:
    made = settings or Settings(settings=())
    on: list[_Switch] = []
    if flags.anomaly_mode:
        on.append(_anomaly(made, ops, host_ops, dispatch, optimizers, modules, phases))
    if flags.user_profiler:
        on.append(_profiler(made, budget, ops, dispatch, stacks))
    if flags.user_trace:
        on.append(_tracer(flags.user_trace, made, budget, stacks))
    if flags.deterministic:
        on.append(_deterministic(made))
    if not on:
        return None
    on.sort(key=lambda switch: -switch.high_ns)
    low, high = sum(switch.low_ns for switch in on), sum(switch.high_ns for switch in on)
    unknown = "" if high else " Its cost was not measured."
    return Found(
        summary=(
            f"Left on during training: {', '.join(f'{x.name}{where(x.at)}' for x in on)}.{unknown}"
        ),
        evidence=(
            *(text("switched on", switch.name, "probe") for switch in on),
            *(measure for switch in on for measure in switch.evidence),
        ),
        fix=Fix(
            " ".join(switch.off for switch in on),
            "review" if flags.deterministic else "safe",
            "+".join(f"{x.change}=off" for x in on if x.change) or None,
            action=f"Switch off {on[0].name}",
            code="torch.autograd.set_detect_anomaly(False)" if flags.anomaly_mode else "",
        ),
        gain=Gain(low, high, " ".join(x.why for x in on if x.high_ns), COMPONENTS)
        if high
        else None,
        at=next((switch.at for switch in on if switch.at is not None), None),
    )


def _anomaly(
    settings: Settings,
    ops: Ops | None,
    host_ops: HostOps | None,
    dispatch: Dispatch | None,
    optimizers: Optimizers | None,
    modules: Modules | None,
    phases: Phases | None,
) -> _Switch:
    setting = settings.last("anomaly", True)
    at = _asked_for(setting.at) if setting else None
    switch = _Switch(
        "anomaly detection",
        f"Call torch.autograd.set_detect_anomaly(False), or remove detect_anomaly(){where(at)}.",
        at,
        change="torch.anomaly",
    )
    if ops is None or dispatch is None:
        return switch
    calls = max(sum(line.grad_calls for line in ops.lines), _nodes(host_ops))
    view, longest_view = _view_ns(host_ops)
    tensors = sum(one.tensors for one in optimizers.optimizers) if optimizers else 0
    numbers = sum(one.parameters for one in modules.modules) if modules else 0
    plain, a_tensor = calls * dispatch.op_ns, tensors * dispatch.op_ns
    measured = calls * max(0.0, dispatch.grad_op_ns - GRAD_CALL * dispatch.op_ns)
    if not plain:
        return switch
    in_forward, in_backward = _recording_ns(phases, ops)
    low = max(plain * ANOMALY_CALLS_LOW, calls * view * LOW_END_FRAC)
    low += a_tensor * CHECK_CALLS_LOW + numbers * CHECK_NS_LOW
    high = max(measured, plain * ANOMALY_CALLS_HIGH, calls * longest_view)
    high += max(a_tensor * CHECK_CALLS_HIGH + numbers * CHECK_NS_HIGH, _checks_ns(host_ops))
    if in_forward >= a_tensor * LEAF_CALLS_LOW:  # else they are not made anew
        high += a_tensor * LEAF_CALLS_HIGH
    most = in_forward + in_backward
    return replace(
        switch,
        low_ns=min(low, most),
        high_ns=min(high, most),
        why=f"each call that records gradients costs {ANOMALY_CALLS_LOW} to {ANOMALY_CALLS_HIGH}"
        " plain calls more (or what was measured here: at the low end half of it), and each"
        " gradient is checked for NaN; at the high end, each parameter costs up to"
        f" {LEAF_CALLS_HIGH} plain calls, too.",
        evidence=(
            count("calls that record gradients", calls, "ops", "per_step"),
            *([ns("a view that records its stack", view, "trace")] if view else []),
            ns("cost of a plain call", dispatch.op_ns, "probe"),
            ns("cost of a call with gradients", dispatch.grad_op_ns, "probe"),
            count("gradients checked for NaN", tensors, "probe", "per_step"),
        ),
    )


def _asked_for(at: Place) -> Place:
    """Where the script asks a framework for it, if a framework switched it on at this line."""
    calls = ast.walk(tree_of(at.file) or ast.Module([], []))
    asked = (x.value.lineno for x in calls if isinstance(x, ast.keyword) and x.arg == ASKS)
    return with_fields(at, line=next(asked, at.line))


def _nodes(host_ops: HostOps | None) -> float:
    """The nodes of the graph that backward goes through, per step, without the parameters' own. A
    call may record several."""
    traced = host_ops.ops if host_ops else ()
    return sum(op.count for op in traced if op.name.startswith(NODE) and LEAF not in op.name)


def _view_ns(host_ops: HostOps | None) -> tuple[float, float]:
    """What a traced view took, ns per call: on average, and of the kind that took longest. A view
    does no work, so if it records a stack, its time is the stack's; 0 if hardly any was traced."""
    traced = host_ops.ops if host_ops else ()
    views = [op for op in traced if op.name in VIEWS and op.count >= MIN_VIEWS]
    calls = sum(op.count for op in views)
    mean = sum(op.self_ns for op in views) / calls if calls else 0.0
    return mean, max((op.self_ns / op.count for op in views), default=0.0)


def _checks_ns(host_ops: HostOps | None) -> float:
    """The traced checks for NaN, ns per step: a comparison and a reduction for each node; 0 if
    there are fewer of them than half of the nodes."""
    traced = host_ops.ops if host_ops else ()
    checks = [op for op in traced if op.name in CHECKS]
    known = len(checks) == len(CHECKS) and all(
        op.count > MAJORITY_FRAC * _nodes(host_ops) for op in checks
    )
    return sum(op.self_ns for op in checks) if known else 0.0


def _recording_ns(phases: Phases | None, ops: Ops) -> tuple[float, float]:
    """The clean time of the calls that record gradients, in which stacks are formatted, and of
    backward, in which gradients are checked, ns per step. Infinite if it was not measured."""
    if phases is None:
        return math.inf, math.inf
    recording = 0.0
    for phase in ("forward", "loss"):
        there = [line for line in ops.lines if line.phase == phase]
        elapsed = sum(line.elapsed_ns for line in there) or 1.0
        share = sum(line.recording_ns for line in there) / elapsed
        recording += phases.wall_ns.get(phase, 0.0) * share
    return recording, phases.wall_ns.get("backward", 0.0)


def _profiler(
    settings: Settings,
    budget: Budget,
    ops: Ops | None,
    dispatch: Dispatch | None,
    stacks: Stacks | None,
) -> _Switch:
    """A torch profiler: it is started and stopped, and it records every call while it runs."""
    made = [found for name in PROFILERS if (found := settings.last(name)) is not None]
    at = made[0].at if made else None
    inside, evidence = 0.0, []
    low = high = 0.0
    if stacks is not None and stacks.samples >= MIN_SAMPLES:
        inside = sum(line.self_frac for line in stacks.training if _in_torchs_profiler(line))
    if inside and stacks is not None:
        least, most = known_to(inside, stacks.samples)
        low, high = least * budget.step_ns, most * budget.step_ns
        evidence.append(frac("samples in the profiler's own functions", inside, "sample"))
    recording = dispatch.profiled_ns if dispatch else None
    if recording is not None and ops is not None:
        calls = sum(line.calls for line in ops.lines)
        with_backward = calls + sum(line.grad_calls for line in ops.lines)
        low += calls * recording
        high += with_backward * recording * EVENTS_OF_A_CALL
        evidence.append(ns("recording one call", recording, "probe"))
        evidence.append(count("torch calls", calls, "ops", "per_step"))
    return _Switch(
        "the script's own torch profiler",
        f"Run the torch profiler{where(at)} for a few scheduled steps only (schedule(wait=...,"
        " active=...)).",
        at,
        low,
        max(low, high),
        "the samples in the profiler's own functions, and the recording of each torch call, as 1"
        f" to {EVENTS_OF_A_CALL} events.",
        tuple(evidence),
        change="torch.profiler",
    )


def _in_torchs_profiler(line: StackLine) -> bool:
    return any(name in line.leaf for name in TORCHS_PROFILER)


def _tracer(name: str, settings: Settings, budget: Budget, stacks: Stacks | None) -> _Switch:
    """cProfile, which samples do not show, or a debugger written in Python, which they show."""
    made = settings.last("cProfile.Profile") if name == "cProfile" else None
    at = made.at if made else None
    switch = _Switch(
        f"{name} of the script", f"Remove {name}{where(at)} from the training loop.", at
    )
    share = 0.0
    if stacks is not None:
        share = sum(
            line.self_frac for line in stacks.training if any(x in line.leaf for x in TRACER_FILES)
        )
    cost = share * budget.step_ns
    if not cost:
        return switch
    samples = (frac("samples inside the tracer", share, "sample"),)
    why = "the tracer's share of the samples."
    return replace(switch, low_ns=cost, high_ns=cost, why=why, evidence=samples)


def _deterministic(settings: Settings) -> _Switch:
    found = [settings.last("deterministic", value) for value in (True, "warn", "error", 1, 2)]
    at = next((setting.at for setting in found if setting is not None), None)
    return _Switch(
        "deterministic algorithms",
        f"Call torch.use_deterministic_algorithms(False){where(at)}, unless results must repeat bit"
        " by bit.",
        at,
        change="torch.deterministic",
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
