"""Other programs compute on the same device

## What it measures
Twice a second the driver (NVML) reports how much each process uses the device's processors. The
processes of the run do not count, nor do its other ranks. Without such reports (an instance of a
partitioned device, or a container that numbers processes differently) nothing is said.

## Why it is slow
Kernels of different processes take turns on a device: while one program's run, the other's wait.
Each also takes memory, which limits the batch.

## What to do
Use a device that is free: `nvidia-smi` lists them, `CUDA_VISIBLE_DEVICES=1 python train.py` chooses
one. Or end the other program, or wait for it. A batch system with exclusive devices prevents it.

## How the gain is computed
High end: the other programs' share of the device, as time of the step. Low end: nothing, because
their kernels may run while the training's own leave the device idle.

## When this advice is wrong
Programs may share a device on purpose, because each alone leaves it idle. A desktop always uses the
device a little.
"""

from __future__ import annotations

from tdiag.evidence.device import DeviceUser, DeviceUsers, IdleDevices
from tdiag.evidence.steps import Budget
from tdiag.evidence.store import Evidence
from tdiag.model.diagnosis import Fix
from tdiag.model.threshold import NOTICEABLE_FRAC
from tdiag.rules.base import Abstain, Found, Gain, count, frac, text
from tdiag.rules.examples import budget
from tdiag.units import percent

CODE = "TD615"
NAME = "device-shared"
CLASS = "compute"
UNTRIED = "the cause is another program"


def check(budget: Budget, users: DeviceUsers | None, idle: IdleDevices | None) -> Found | None:
    if not budget.has_device:
        return None
    if users is None:
        raise Abstain("the driver did not report which processes used the device")
    taken = min(1.0, sum(other.frac for other in users.others))
    if taken < NOTICEABLE_FRAC:
        return None
    first, more = users.others[0], len(users.others) - 1
    free = f" {idle.count} more were idle." if idle else ""
    return Found(
        summary=(
            f"Other programs use {percent(taken)} of the device while the training uses"
            f" {percent(users.own_frac)}: {first.name} (process {first.pid})"
            f"{f' and {more} more' if more else ''}."
        ),
        evidence=(
            frac("use of the device by other programs", taken, "system"),
            frac("use by the training", users.own_frac, "system"),
            text("the busiest of them", f"{first.name}, process {first.pid}", "system"),
            count("readings", users.samples, "system"),
        ),
        fix=Fix(
            "Train on a device that is free (`CUDA_VISIBLE_DEVICES` chooses it), or end process"
            f" {first.pid} ({first.name}).{free}",
            "manual",
            action="Train on a device that no other program uses",
        ),
        gain=Gain(
            0.0,
            taken * budget.step_ns,
            f"high end: the others' {percent(taken)} of the device; low end: nothing, if their"
            " kernels run while the training's leave the device idle.",
            ("compute", "comm", "h2d", "d2h", "launch", "sync", "other"),
        ),
    )


def fires() -> Evidence:
    """A notebook that was left open on the same device."""
    return _shared(0.4)


def clear() -> Evidence:
    """A desktop."""
    return _shared(0.005)


def _shared(frac: float) -> Evidence:
    other = DeviceUser(pid=4242, name="python3", frac=frac)
    users = DeviceUsers(samples=20, own_frac=0.55, others=(other,))
    return Evidence().add(budget(device=True, compute=80, launch=20), users)
