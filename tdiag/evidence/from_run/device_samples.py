"""The device beside the run, as the driver (NVML) reported it during the clean window."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence

import msgspec

from tdiag.evidence.device import (
    DeviceClocks,
    DeviceNearness,
    DeviceUser,
    DeviceUsers,
    HeldDown,
    IdleDevices,
)
from tdiag.model.kind import Kind

Looks = Sequence[Sequence["RecordedGpu"]]  # all devices, of each sample


class RecordedGpu(msgspec.Struct):
    """What never changes (in the `machine` line), or what a sample saw."""

    index: int = 0
    name: str | None = None
    uuid: str | None = None
    memory_total: int | None = None
    util: float | None = None
    memory_used: int | None = None
    sm_mhz: int | None = None
    sm_max_mhz: int | None = None
    throttle: list[str] | None = None
    processes: dict[str, tuple[float, str | None]] | None = None  # pid → use (0..1), name
    cpus_near: list[int] | None = None


def make_device_kinds(
    about: Sequence[RecordedGpu],
    looks: Looks,
    uuid: str | None,
    ours: Collection[int],
    on_cpu: Sequence[int],
) -> Iterator[Kind]:
    """``about``: what never changes; ``uuid``: of the device that the process computes on, as the
    probe reports it; ``ours``: the run's processes; ``on_cpu``: where the training thread ran."""
    gpu = _own(about, looks, uuid)
    fixed = next((g for g in about if gpu and g.index == gpu[0].index), RecordedGpu())
    yield from _clocks(gpu, fixed)
    yield from _users(gpu, ours)
    yield from _idle(looks)
    if fixed.cpus_near and on_cpu:
        near = sum(cpu in fixed.cpus_near for cpu in on_cpu) / len(on_cpu)
        yield DeviceNearness(samples=len(on_cpu), near_frac=near, cpus_near=tuple(fixed.cpus_near))


def busiest(looks: Looks) -> list[RecordedGpu]:
    """The samples of the most used device."""
    by_index: dict[int, list[RecordedGpu]] = {}
    for gpus in looks:
        for gpu in gpus:
            by_index.setdefault(gpu.index, []).append(gpu)
    return max(by_index.values(), key=lambda gpus: sum(g.util or 0.0 for g in gpus), default=[])


def _own(about: Sequence[RecordedGpu], looks: Looks, uuid: str | None) -> list[RecordedGpu]:
    """The samples of this device; if its uuid is unknown, of the most used device."""
    if uuid is None:
        return busiest(looks)
    mine = {g.index for g in about if (g.uuid or "").partition("-")[2] == uuid}
    return [gpu for gpus in looks for gpu in gpus if gpu.index in mine]


def _users(gpu: Sequence[RecordedGpu], ours: Collection[int]) -> Iterator[DeviceUsers]:
    """Only if the run's own processes are among those that the driver names: in a container it may
    number processes as the machine does."""
    known = [look.processes for look in gpu if look.processes is not None]
    shares: defaultdict[int, float] = defaultdict(float)
    names: dict[int, str | None] = {}
    for processes in known:
        for pid, (share, name) in processes.items():
            shares[int(pid)] += share / len(known)
            names[int(pid)] = name
    own = [share for pid, share in shares.items() if pid in ours]
    if not own:
        return
    others = [
        DeviceUser(pid=pid, name=names[pid] or "a process", frac=share)
        for pid, share in shares.items()
        if pid not in ours
    ]
    yield DeviceUsers(
        samples=len(known),
        own_frac=sum(own),
        others=tuple(sorted(others, key=lambda other: -other.frac)),
    )


def _idle(looks: Looks) -> Iterator[IdleDevices]:
    used: defaultdict[int, list[float | None]] = defaultdict(list)
    for gpus in looks:
        for each in gpus:
            used[each.index].append(each.util)
    idle = [index for index, shares in used.items() if not any(u is None or u > 0 for u in shares)]
    if idle and len(idle) < len(used):
        yield IdleDevices(count=len(idle), samples=len(looks))


def _clocks(gpu: Sequence[RecordedGpu], about: RecordedGpu) -> Iterator[DeviceClocks]:
    known = [g for g in gpu if g.throttle is not None]
    if not known:
        return
    by_reason: dict[str, list[RecordedGpu]] = {}
    for look in known:
        for reason in look.throttle or ():
            by_reason.setdefault(reason, []).append(look)
    held_down = [
        HeldDown(
            reason=reason,
            frac=len(looks) / len(known),
            sm_mhz=_mean([look.sm_mhz for look in looks if look.sm_mhz is not None]),
        )
        for reason, looks in by_reason.items()
    ]
    held_down.sort(key=lambda held: -held.frac)
    held = tuple(held_down)
    yield DeviceClocks(samples=len(known), held_down=held, sm_max_mhz=about.sm_max_mhz)


def _mean(values: list[int]) -> float | None:
    return sum(values) / len(values) if values else None
