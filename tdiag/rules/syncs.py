"""Sums over synchronisations, which the sync rules share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tdiag.evidence.device import DeviceTime, Sync, Syncs
from tdiag.evidence.kinds import Budget, SyncLines
from tdiag.model.diagnosis import Measure
from tdiag.model.place import Place
from tdiag.rules.base import Gain
from tdiag.rules.measures import count, ns

# Half of the values may have to be read where they are; ours.
KEPT_FRAC = 0.5


@dataclass(frozen=True)
class Drains:
    """Synchronisations after which the device idles. ``frac``: the part of them that is meant.
    ``names``: the calls that would go with them, also those that find the device drained already.

    ``scale``: clean step ÷ traced step, since traced steps are longer.
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
        """Low: half of the host's waiting; all of it is what is won where launching is slow."""
        waiting = sum(min(sync.idle_after_ns, sync.host_ns) for sync in self.syncs)
        return Gain(
            self.frac * self.scale * waiting * (1 - KEPT_FRAC),
            self.idle,
            "high end: all device idle time after the synchronisations; low end: half of what the"
            " host spent waiting in them.",
            ("sync", "launch", "other", "d2h", "python_loss", "optimizer"),
            {f"wait {name}": 1 - self.frac * (1 - KEPT_FRAC) for name in self.names},
            {f"wait {name}": 1 - self.frac for name in self.names},
        )

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
    """Those of ``syncs`` that leave the device idle; None if none does. ``at``: where they are,
    unless the trace itself says."""
    dear = [sync for sync in syncs if sync.idle_after_ns > 0]
    if not dear:
        return None
    traced = max(dear, key=lambda sync: sync.idle_after_ns).at
    names = frozenset(sync.name for sync in syncs)
    return Drains(dear, traced or at, budget.step_ns / device.step_ns, names, frac)


def waits(syncs: Syncs) -> list[Sync]:
    """The runtime calls that waited. An op such as ``aten::item`` is left out where the calls
    inside it are listed too, so that nothing counts twice."""
    calls = [sync for sync in syncs.syncs if not sync.name.startswith("aten::")]
    return calls or list(syncs.syncs)


def asked_for(sync: Sync) -> bool:
    """The script itself asked the whole device to finish."""
    return sync.name.endswith(("DeviceSynchronize", "CtxSynchronize"))


def busiest(lines: SyncLines | None) -> Place | None:
    """The line that synchronises most often, as torch's own debug mode warned."""
    if lines is None or not lines.lines:
        return None
    return max(lines.lines, key=lambda line: line.per_step).at
