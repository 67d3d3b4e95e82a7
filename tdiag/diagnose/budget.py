"""The time of the clean step: every nanosecond in exactly one component."""

from __future__ import annotations

from collections.abc import Mapping

from tdiag import units
from tdiag.evidence.device import BETWEEN_STEPS, DEVICE_BUSY, Device, DeviceTime
from tdiag.evidence.feeding import Loader, Loaders
from tdiag.evidence.sampled import CallTrees, Stacks
from tdiag.evidence.steps import Budget, Phases, Steps, component_of
from tdiag.evidence.store import Evidence
from tdiag.evidence.torch_ops import Calls, Ops
from tdiag.model.threshold import MAJORITY_FRAC, NOTICEABLE_FRAC
from tdiag.rules.base import known_to
from tdiag.rules.evaluation import gathers
from tdiag.rules.feed import batches_per_step
from tdiag.rules.loop_lines import AFTER, BEFORE, beside_the_step, reads_value
from tdiag.rules.thresholds import HEALTHY_COMPUTE_FRAC, MIN_SAMPLES


def make_budget(evidence: Evidence) -> Budget | None:
    """The clean step by component, or None if no step was measured.

    The step is the clean window's mean; for a bare trace, the traced mean. The components add up
    to it exactly. Data wait is split into blocked (``data_wait_io``) and on-CPU
    (``data_wait_cpu``) by what the fetches that caused it were doing; time without such evidence,
    and the time to start a loader's workers, stays ``data_wait``.

    Whether the run computed on a device comes from the process itself, not from the kernels in its
    trace.
    """
    steps, phases = evidence.get(Steps), evidence.get(Phases)
    device = evidence.get(DeviceTime)
    if steps is None or phases is None or steps.mean_ns <= 0:
        return None if device is None else _traced(device)
    busy = device is not None and sum(device.components_ns.get(n, 0.0) for n in DEVICE_BUSY) > 0
    host = {component_of(name): ns for name, ns in phases.wall_ns.items()}
    if busy and device is not None:
        host = _with_device(steps.mean_ns, host, device)
    parts = _after_the_step(_made_again(host, steps.mean_ns, evidence), phases, evidence)
    split = _split_wait(parts, phases, evidence.get(Loaders))
    on_device = evidence.get(Device) is not None
    return Budget(
        step_ns=steps.mean_ns,
        components_ns=apportion(split, steps.mean_ns),
        has_device=busy or on_device,
        blind=on_device and not busy,
    )


def _traced(device: DeviceTime) -> Budget | None:
    """A bare trace's own step."""
    step = round(device.step_ns)
    if step <= 0:
        return None
    busy = any(device.components_ns.get(name, 0.0) > 0 for name in DEVICE_BUSY)
    return Budget(
        step_ns=step, components_ns=apportion(device.components_ns, step), has_device=busy
    )


def _with_device(step_ns: int, host: Mapping[str, float], device: DeviceTime) -> dict[str, float]:
    """Device activity as traced. In the rest, data wait comes from the clean window; the other
    causes of idle time keep their proportions in the trace."""
    traced = dict(device.components_ns)
    parts = {name: host[name] for name in BETWEEN_STEPS if name in host}
    left = step_ns - sum(parts.values())
    busy = {name: traced.pop(name) for name in DEVICE_BUSY if traced.get(name)}
    # Traced steps may be longer than the clean mean by chance, but the device cannot be busy for
    # longer than the clean step.
    fit = min(1.0, left / sum(busy.values()))
    parts.update({name: ns * fit for name, ns in busy.items()})
    idle = left - sum(busy.values()) * fit
    waited = traced.pop("data_wait", 0.0)
    causes = {name: ns for name, ns in traced.items() if name not in BETWEEN_STEPS and ns > 0}
    clean_wait = host.get("data_wait", 0.0)
    if waited and device.host_ns.get("data_wait"):  # the device works during a part of the wait
        waited = clean_wait * min(1.0, waited / device.host_ns["data_wait"])
    wait = _idle_waiting(idle, waited, clean_wait, sum(causes.values()))
    parts["data_wait"] = wait
    total = sum(causes.values())
    for name, ns in causes.items():
        parts[name] = (idle - wait) * ns / total
    if not total:
        parts["unattributed"] = idle - wait
    # A short idle time before the forward is launching and the loop's own Python.
    if parts.get("prepare", 0.0) < (1 - HEALTHY_COMPUTE_FRAC) * step_ns:
        parts["other"] = parts.get("other", 0.0) + parts.pop("prepare", 0.0)
    return {name: ns for name, ns in parts.items() if ns > 0}


def _made_again(host: Mapping[str, float], step_ns: int, evidence: Evidence) -> Mapping[str, float]:
    """What an epoch makes again before its first batch follows the evaluation of the last one,
    from which no mark separates it. Lines above the forward do not evaluate: what samples give them
    beyond the time before the forward and after the step moves from evaluation to ``other``, if it
    is most of it. An agent that acts gathers its data there, so nothing moves."""
    if gathers(evidence.get(Phases), evidence.get(Calls), evidence.get(CallTrees)):
        return host
    stacks = evidence.get(Stacks)
    waits = evidence.get(Device) is not None  # a sampled line may wait for the device
    if not host.get("evaluation") or waits or stacks is None or stacks.samples < MIN_SAMPLES:
        return host
    seen = (stacks, evidence.get(Ops), evidence.get(CallTrees))
    share = sum(line.self_frac for line in beside_the_step(BEFORE, *seen))
    least, _ = known_to(share, stacks.samples)
    beside = host.get("prepare", 0.0) + host.get("other", 0.0)
    moved = min(host["evaluation"], least * step_ns - beside)
    if beside >= MAJORITY_FRAC * least * step_ns or moved < NOTICEABLE_FRAC * step_ns:
        return host
    return {
        **host,
        "evaluation": host["evaluation"] - moved,
        "other": host.get("other", 0.0) + moved,
    }


def _after_the_step(
    host: Mapping[str, float], phases: Phases, evidence: Evidence
) -> Mapping[str, float]:
    """Without a loader, ``prepare`` begins at the end of the previous step. Time that samples put
    after that step makes no batch, so it moves to ``other``."""
    if "prepare" not in host or {"after_step", "data_wait"} & phases.wall_ns.keys():
        return host
    seen = (evidence.get(Stacks), evidence.get(Ops), evidence.get(CallTrees))
    waits = evidence.get(Device) is not None  # a line that reads a value waits for the step's work
    after, before = (
        sum(
            line.self_frac
            for line in beside_the_step(side, *seen)
            if not (waits and reads_value(line, seen[1]))
        )
        for side in (AFTER, BEFORE)
    )
    stacks = seen[0]
    if stacks is None or not after:
        return host
    share, seen_beside = after / (after + before), round((after + before) * stacks.samples)
    if seen_beside < MIN_SAMPLES:
        if after + before < MAJORITY_FRAC * host["prepare"] / sum(host.values()):
            return host  # most of the time is in lines whose side is unknown
        share, _ = known_to(share, seen_beside)  # the part that is sure
    moved = host["prepare"] * share
    return {
        **host, "prepare": host["prepare"] - moved, "other": host.get("other", 0.0) + moved
    }  # fmt: skip


def _idle_waiting(idle: float, likely: float, clean_wait: float, other: float) -> float:
    """Device idle time in which the host waited for data, ns per clean step.

    ``likely`` comes from the trace. Under the profiler a loader may catch up, so it is bounded:
    above by the clean wait (in part of which the device may have worked) and by the idle time;
    below by the idle time that the other causes, which the profiler only makes longer, leave
    unexplained.
    """
    most = min(clean_wait, idle)
    return min(most, max(likely, idle - other))


def _split_wait(
    host: Mapping[str, float], phases: Phases, loaders: Loaders | None
) -> dict[str, float]:
    """Splits data wait into io and cpu, by what the training loader's fetches did. Workers' fetches
    explain no more of it than they take."""
    parts = dict(host)
    train = loaders.train() if loaders else None
    blocked = _blocked_share(train) if train else None
    wait = parts.pop("data_wait", 0.0)
    starting = min(wait, starting_workers(phases, train))
    if blocked is None or train is None:
        return parts | ({"data_wait": wait} if wait else {})
    fetched = wait - starting
    fetch = batches_per_step(phases, train) * ((train.load_ns or 0.0) + (train.collate_ns or 0.0))
    if train.num_workers and fetch < MAJORITY_FRAC * fetched:
        fetched = fetch  # the rest waits for batches to be handed over
    split = {
        "data_wait_io": fetched * blocked,
        "data_wait_cpu": fetched * (1 - blocked),
        "data_wait": wait - fetched,
    }
    return parts | {name: ns for name, ns in split.items() if ns > 0}


def _blocked_share(loader: Loader) -> float | None:
    """Blocked time of the fetches ÷ (blocked + on-CPU time), 0..1; None if not measured.

    Time in which a fetch waited for a core depends on the machine, not on the fetch: it is left out
    and thus split in proportion.
    """
    blocked = loader.blocked_frac()
    if blocked is None or loader.load_ns is None or loader.load_cpu_ns is None:
        return None
    off = blocked * (loader.load_ns + (loader.collate_ns or 0.0))
    on = loader.load_cpu_ns + (loader.collate_cpu_ns or 0.0) + loader.awaited_cpu_ns()
    return off / (off + on) if off + on else None


def starting_workers(phases: Phases, train: Loader | None) -> float:
    """Time for starting this loader's workers, a part of data wait, ns per step."""
    return phases.iterator_start_ns if train is not None and train.num_workers else 0.0


def apportion(parts: Mapping[str, float], total: int) -> dict[str, int]:
    """Round to integers that add up to ``total`` (:func:`tdiag.units.apportion`).

    A shortfall becomes ``unattributed``; parts beyond the total are scaled down.
    """
    known = {name: max(0.0, ns) for name, ns in parts.items()}
    short = total - sum(known.values())
    # Means of integers agree to half a nanosecond per part; a larger shortfall is missing time.
    if short > len(known) + 1:
        known["unattributed"] = known.get("unattributed", 0.0) + short
    whole = zip(known, units.apportion(list(known.values()), total), strict=True)
    return {name: ns for name, ns in whole if ns}
