"""The device's clocks are held down by heat or its power supply

## What it measures
Twice a second the driver (NVML) is asked at which clock the device's processors run, and whether
something holds it down. Counted are heat and faults of the power supply, not the device's own power
limit, into which every device runs that works hard.

## Why it is slow
A device that gets too hot, or too little power, lowers its clocks until it is safe. All arithmetic
takes longer by as much, whatever the program does.

## What to do
Better cooling: fans, dust, the room, a neighbour in the next slot; or another machine. On rented
hardware: give the device back. Nothing in the script mends it.

## How the gain is computed
High end: the time of compute kernels, in the share of the looks that found the clock held down,
shrinks as it grows to its highest. Low end: nothing,
since kernels that wait for memory do not follow the processors' clock, and the highest clock may
lie above what the device's power limit lets it keep.

## When this advice is wrong
Some drivers report a slowdown that costs next to nothing. The clock is what counts: it is compared
with the highest that the device can take.
"""

from __future__ import annotations

from tdiag.evidence.clocks import DeviceClocks, HeldDown
from tdiag.evidence.kinds import Budget
from tdiag.evidence.store import Evidence
from tdiag.model.diagnosis import Fix
from tdiag.rules.base import Abstain, Found, Gain, held
from tdiag.rules.examples import budget
from tdiag.rules.measures import count, frac
from tdiag.rules.thresholds import MAJORITY_FRAC, NOTICEABLE_FRAC
from tdiag.units import percent

CODE = "TD612"
NAME = "device-clocks-held-down"
CLASS = "compute"

# As `tdiag.sample.gpu` names nvml.h's reasons that are faults of cooling or supply.
FAULTS = frozenset({"hardware slowdown", "thermal (software)", "thermal (hardware)", "power brake"})


def check(budget: Budget, clocks: DeviceClocks | None) -> Found | None:
    if not budget.has_device:
        return None
    if clocks is None:
        raise Abstain("the device's clocks were not watched")
    faults = [held_down for held_down in clocks.held_down if held_down.reason in FAULTS]
    worst = max(faults, key=lambda held_down: held_down.frac, default=None)
    if worst is None or worst.frac < MAJORITY_FRAC:
        return None
    if not worst.sm_mhz or not clocks.sm_max_mhz:
        raise Abstain("the device's clock was not told")
    clock = worst.sm_mhz / clocks.sm_max_mhz
    lost = held(budget, "compute") * worst.frac * (1 - clock)
    if lost < NOTICEABLE_FRAC * budget.step_ns:
        return None
    return Found(
        summary=(
            f"The device's processors are held down to {worst.sm_mhz:.0f} of {clocks.sm_max_mhz}"
            f" MHz in {percent(worst.frac)} of {clocks.samples} looks at them: {worst.reason}."
        ),
        evidence=(
            frac("clock then, mean ÷ highest", clock, "system"),
            count("looks at it", clocks.samples, "system"),
            *(frac(f"held down: {fault.reason}", fault.frac, "system") for fault in faults),
        ),
        fix=Fix(
            "Cool the device better, or train on another: `nvidia-smi -q -d"
            " PERFORMANCE,TEMPERATURE` shows what holds it down. Nothing in the script mends it.",
            "manual",
        ),
        gain=Gain(
            0.0,
            lost,
            "high end: compute kernels follow the clock to its highest; low end: they wait for"
            " memory, or the power limit keeps the clock.",
            ("compute",),
        ),
    )


def fires() -> Evidence:
    return _training(
        HeldDown(reason="thermal (hardware)", frac=0.9, sm_mhz=1100.0),
        HeldDown(reason="power cap", frac=0.1, sm_mhz=1500.0),
    )


def clear() -> Evidence:
    """It works as hard as its own power limit lets it."""
    return _training(HeldDown(reason="power cap", frac=1.0, sm_mhz=1500.0))


def _training(*held_down: HeldDown) -> Evidence:
    clocks = DeviceClocks(samples=20, held_down=held_down, sm_max_mhz=1980)
    return Evidence().add(budget(device=True, compute=90, launch=10), clocks)
