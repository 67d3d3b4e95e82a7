"""What the device waits for: copies, synchronisations, launches; sums that rules share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from tdiag.evidence.device import (
    BETWEEN_STEPS,
    COMPUTE_FAMILIES,
    DEVICE_BUSY,
    MEMORIES,
    Copy,
    DeviceTime,
    Sync,
    SyncLines,
    Syncs,
)
from tdiag.evidence.roofline import OpWork, Roof, Work
from tdiag.evidence.steps import Budget
from tdiag.model.diagnosis import Measure
from tdiag.model.place import Place
from tdiag.rules.base import DATA_WAIT, Abstain, Gain, bytes_, count, held, ns
from tdiag.rules.thresholds import LOW_END_FRAC

# Budget components in which the device is idle while the host issues work. Waiting for data and
# idle time in the loss have their own rules.
ISSUING = ("launch", "optimizer", "other")
# Their names in the replay of a trace (tdiag.evidence.replay).
ISSUING_TAGS = ("call", *(f"host {state}" for state in ISSUING))


def busy_scale(budget: Budget, device: DeviceTime) -> float:
    """The device's time in the clean step ÷ that in the traced one: 1, however much the profiler
    slowed the host, unless the device was busy for longer than the clean step."""
    traced = sum(device.components_ns.get(name, 0.0) for name in DEVICE_BUSY)
    clean = held(budget, *DEVICE_BUSY)
    return clean / traced if traced and clean else budget.step_ns / device.step_ns


def idle_scale(budget: Budget, device: DeviceTime) -> float:
    """The same of the device's idle time within steps, in which the profiler slowed the host."""
    without = (*DEVICE_BUSY, *BETWEEN_STEPS, *DATA_WAIT)
    clean, traced = (
        sum(ns for name, ns in parts.items() if name not in without)
        for parts in (budget.components_ns, device.components_ns)
    )
    return clean / traced if traced else budget.step_ns / device.step_ns


def starved_ns(budget: Budget, device: DeviceTime) -> float:
    """Device idle time before kernels that start the moment they are launched, ns per clean step;
    at most the budget's time for issuing work."""
    return min(device.launch_starved_ns * idle_scale(budget, device), held(budget, *ISSUING))


def kernels_ns(
    budget: Budget, work: Work | None, device: DeviceTime | None, mine: Callable[[OpWork], bool]
) -> float:
    """What the kernels of these ops take, ns per clean step."""
    if work is None or device is None:
        raise Abstain("no device activity was traced")
    return sum(op.device_ns or 0.0 for op in work.ops if mine(op)) * busy_scale(budget, device)


def issuing_cuts(budget: Budget, starved: float, left: float) -> dict[str, float]:
    """The factors of a replay in which ``left`` remains of the ``starved`` ns. The rest of the time
    in which the host issues work is not launching and stays whole."""
    share = starved / max(starved, held(budget, *ISSUING))
    return dict.fromkeys(ISSUING_TAGS, 1 - share * (1 - left))


def computing_cuts(left: float) -> dict[str, float]:
    """The factors of a replay in which ``left`` remains of the time of every kernel, 0..1, and of
    copies within the device: all that the budget's ``compute`` holds."""
    kinds = ("", " float32")
    return {f"{family}{kind}": left for family in (*COMPUTE_FAMILIES, "copy") for kind in kinds}


def shortened_cuts(budget: Budget, saved: float) -> dict[str, float]:
    """The same without ``saved`` ns of computing, per clean step: all kernels get shorter by that
    share, because the trace does not say which they are."""
    computing = held(budget, "compute")
    return computing_cuts(1 - min(1.0, saved / computing)) if computing else {}


def exposed(copies: Sequence[Copy], budget: Budget, device: DeviceTime) -> float:
    """Time of these copies that no compute overlaps, ns per clean step."""
    return sum(copy.exposed_ns for copy in copies) * busy_scale(budget, device)


def merged(copies: Sequence[Copy]) -> Copy:
    """All copies as one, at the place of the most expensive; at least one is needed."""
    worst = max(copies, key=lambda copy: copy.exposed_ns)
    sizes = [copy.bytes for copy in copies]
    return replace(
        worst,
        count=sum(copy.count for copy in copies),
        bytes=None if None in sizes else sum(size or 0.0 for size in sizes),
        device_ns=sum(copy.device_ns for copy in copies),
        exposed_ns=sum(copy.exposed_ns for copy in copies),
        host_blocked_ns=sum(copy.host_blocked_ns for copy in copies),
    )


def copy_measures(copy: Copy, host: bool = False) -> tuple[Measure, ...]:
    """``host``: include the time that the host is blocked."""
    measures = [
        ns("copies not overlapped by compute", copy.exposed_ns, "trace"),
        ns("copies, device time", copy.device_ns, "trace"),
        count("copies", copy.count, "trace", "per_step"),
    ]
    if copy.bytes is not None:
        measures.append(bytes_("copied per step", copy.bytes, "trace"))
        if copy.device_ns:
            measures.append(count("bandwidth", copy.bytes / copy.device_ns, "trace", "gb_per_s"))
    if host:
        measures.append(ns("host blocked in the copies", copy.host_blocked_ns, "trace"))
    return tuple(measures)


def joined_cuts(
    budget: Budget, work: Work | None, roof: Roof | None, waiting: float, goes: float
) -> dict[str, float]:
    """The same where many calls are made as one: of all kernels' time the share ``goes`` goes, but
    not what their arithmetic needs. Only if the device waits longer (``waiting``, ns per step) than
    it works, because then its kernels are short: each reads the weights again, or does too little
    for all of the device."""
    computing = held(budget, "compute")
    if work is None or roof is None or not 0 < computing < waiting:
        return {}
    needed = sum(map(roof.compute_ns, work.ops)) / computing
    return computing_cuts(min(1.0, max(1 - goes, needed)))


@dataclass(frozen=True)
class Drains:
    """Synchronisations after which the device idles. ``frac``: the share of them that the fix
    removes. ``names``: all calls that would go with it, also those without idle time. ``scale``:
    idle time of the clean step ÷ that of the traced one (:func:`idle_scale`).
    """

    syncs: Sequence[Sync]
    at: Place | None
    scale: float
    names: frozenset[str]
    frac: float = 1.0

    @property
    def times(self) -> float:
        return self.frac * sum(sync.count for sync in self.syncs)

    @property
    def idle(self) -> float:
        """Device idle after them, ns per clean step."""
        return self.frac * self.scale * sum(sync.idle_after_ns for sync in self.syncs)

    def gain(self) -> Gain:
        """Low end: half of the host's waiting, which is all there is to gain if launches are
        slow."""
        waiting = sum(min(sync.idle_after_ns, sync.host_ns) for sync in self.syncs)
        return Gain(
            self.frac * self.scale * waiting * (1 - LOW_END_FRAC),
            self.idle,
            "high end: all device idle time after the synchronisations; low end: half of the time"
            " that the host waits in them.",
            ("sync", "launch", "other", "d2h", "python_loss", "optimizer"),
            dict.fromkeys(self._tags(), 1 - self.frac * (1 - LOW_END_FRAC)),
            dict.fromkeys(self._tags(), 1 - self.frac),
        )

    def _tags(self) -> list[str]:
        """Of the calls that would go, in a replay."""
        copies = any("Memcpy" in name for name in self.names)
        read = [f"wait d2h {memory}" for memory in MEMORIES if copies]
        return [*(f"wait {name}" for name in sorted(self.names)), *read]

    def measures(self) -> tuple[Measure, ...]:
        top = sorted(self.syncs, key=lambda sync: -sync.idle_after_ns)[:3]
        return (
            count("synchronisations that drain the device", self.times, "trace", "per_step"),
            ns("device idle after them", self.idle, "trace"),
            ns("host waiting in them", sum(sync.host_ns for sync in self.syncs), "trace"),
            *(ns(f"idle after {sync.name}", sync.idle_after_ns, "trace") for sync in top),
        )


def drains(
    budget: Budget,
    device: DeviceTime,
    syncs: Sequence[Sync],
    at: Place | None = None,
    frac: float = 1.0,
) -> Drains | None:
    """The ``syncs`` that leave the device idle; None if none does. ``at``: their place if the trace
    does not know it."""
    draining = [sync for sync in syncs if sync.idle_after_ns > 0]
    if not draining:
        return None
    traced = max(draining, key=lambda sync: sync.idle_after_ns).at
    names = frozenset(sync.name for sync in syncs)
    return Drains(draining, traced or at, idle_scale(budget, device), names, frac)


def waits(syncs: Syncs) -> list[Sync]:
    """The runtime calls that waited. Ops such as ``aten::item`` are left out if the calls inside
    them are listed too, so that nothing counts twice."""
    calls = [sync for sync in syncs.syncs if not sync.name.startswith("aten::")]
    return calls or list(syncs.syncs)


def asked_for(sync: Sync) -> bool:
    """Whether the script itself synchronised the whole device."""
    return sync.name.endswith(("DeviceSynchronize", "CtxSynchronize"))


def busiest(lines: SyncLines | None) -> Place | None:
    """The line that synchronises most often, by the warnings of torch's debug mode."""
    if lines is None or not lines.lines:
        return None
    return max(lines.lines, key=lambda line: line.per_step).at
