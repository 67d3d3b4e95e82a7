"""The device's clocks are reduced by heat or a power fault

## What it measures
Twice a second the driver (NVML) reports the clock of the device's processors and what reduces it.
Heat and power supply faults count. The device's own power limit does not: every device under full
load reaches it.

## Why it is slow
A device that gets too hot or too little power lowers its clocks. All arithmetic takes longer,
whatever the program does.

## What to do
Improve the cooling (fans, dust, room temperature, a neighbour in the next slot), or use another
machine. Return a rented device. No change of the script helps.

## How the gain is computed
High end: in the share of readings with a reduced clock, compute kernels speed up as the clock rises
to its maximum. Low end: nothing, because kernels that wait for memory do not follow the processor
clock, and the power limit may not allow the maximum.

## When this advice is wrong
Some drivers report a slowdown that costs almost nothing. So the rule also compares the clock with
the device's maximum.
"""

from __future__ import annotations

from tdiag.evidence.device import DeviceClocks, HeldDown
from tdiag.evidence.steps import Budget
from tdiag.evidence.store import Evidence
from tdiag.model.diagnosis import Fix
from tdiag.model.threshold import MAJORITY_FRAC, NOTICEABLE_FRAC
from tdiag.rules.base import Abstain, Found, Gain, count, frac, held
from tdiag.rules.examples import budget
from tdiag.units import percent

CODE = "TD612"
NAME = "device-clocks-held-down"
CLASS = "compute"
UNTRIED = "the cause is the machine, not the program"

# Cooling and power supply faults, as `tdiag.sample.gpu` names nvml.h's throttle reasons.
FAULTS = frozenset({"hardware slowdown", "thermal (software)", "thermal (hardware)", "power brake"})


def check(budget: Budget, clocks: DeviceClocks | None) -> Found | None:
    if not budget.has_device:
        return None
    if clocks is None:
        raise Abstain("the device's clocks were not sampled")
    faults = [held_down for held_down in clocks.held_down if held_down.reason in FAULTS]
    worst = max(faults, key=lambda held_down: held_down.frac, default=None)
    if worst is None or worst.frac < MAJORITY_FRAC:
        return None
    if not worst.sm_mhz or not clocks.sm_max_mhz:
        raise Abstain("the driver did not report the device's clock")
    clock = worst.sm_mhz / clocks.sm_max_mhz
    lost = held(budget, "compute") * worst.frac * (1 - clock)
    if lost < NOTICEABLE_FRAC * budget.step_ns:
        return None
    return Found(
        summary=(
            f"The device runs at {worst.sm_mhz:.0f} of {clocks.sm_max_mhz} MHz in"
            f" {percent(worst.frac)} of {clocks.samples} readings: {worst.reason}."
        ),
        evidence=(
            frac("reduced clock, mean ÷ maximum", clock, "system"),
            count("readings", clocks.samples, "system"),
            *(frac(f"reduced by {fault.reason}", fault.frac, "system") for fault in faults),
        ),
        fix=Fix(
            "Cool the device better, or train on another one. `nvidia-smi -q -d"
            " PERFORMANCE,TEMPERATURE` shows the cause. No change of the script helps.",
            "manual",
            action="Cool the device better or use another one",
        ),
        gain=Gain(
            0.0,
            lost,
            "high end: compute kernels follow the clock to its maximum; low end: nothing, if"
            " they wait for memory or the power limit prevents the maximum.",
            ("compute",),
        ),
    )


def fires() -> Evidence:
    return _training(
        HeldDown(reason="thermal (hardware)", frac=0.9, sm_mhz=1100.0),
        HeldDown(reason="power cap", frac=0.1, sm_mhz=1500.0),
    )


def clear() -> Evidence:
    """The device runs at its own power limit."""
    return _training(HeldDown(reason="power cap", frac=1.0, sm_mhz=1500.0))


def _training(*held_down: HeldDown) -> Evidence:
    clocks = DeviceClocks(samples=20, held_down=held_down, sm_max_mhz=1980)
    return Evidence().add(budget(device=True, compute=90, launch=10), clocks)
