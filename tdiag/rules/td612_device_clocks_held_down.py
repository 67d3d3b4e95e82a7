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
High end: the time of compute kernels shrinks as the clock grows to its highest. Low end: nothing,
since kernels that wait for memory do not follow the processors' clock, and the highest clock may
lie above what the device's power limit lets it keep.

## When this advice is wrong
Some drivers report a slowdown that costs next to nothing. The clock is what counts: it is compared
with the highest that the device can take.
"""

from __future__ import annotations

from tdiag.diagnose.model import Fix
from tdiag.evidence.clocks import DeviceClocks
from tdiag.evidence.kinds import Budget
from tdiag.evidence.store import Evidence
from tdiag.rules.base import Abstain, Found, Gain, held
from tdiag.rules.examples import budget
from tdiag.rules.measures import count, frac
from tdiag.rules.shares import MOSTLY_FRAC, NOTICEABLE_FRAC
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
    faults = {why: share for why, share in clocks.held_down.items() if why in FAULTS}
    why, share = max(faults.items(), key=lambda fault: fault[1], default=("", 0.0))
    if share < MOSTLY_FRAC:
        return None
    if not clocks.sm_mhz or not clocks.sm_max_mhz:
        raise Abstain("the device's clock was not told")
    lost = 1 - clocks.sm_mhz / clocks.sm_max_mhz
    compute = held(budget, "compute")
    if compute * lost < NOTICEABLE_FRAC * budget.step_ns:
        return None
    return Found(
        summary=(
            f"The device's processors run at {clocks.sm_mhz:.0f} of {clocks.sm_max_mhz} MHz, held"
            f" down in {percent(share)} of {clocks.samples} looks at them: {why}."
        ),
        evidence=(
            frac("clock, mean ÷ highest", clocks.sm_mhz / clocks.sm_max_mhz, "system"),
            count("looks at it", clocks.samples, "system"),
            *(frac(f"held down: {name}", part, "system") for name, part in faults.items()),
        ),
        fix=Fix(
            "Cool the device better, or train on another: `nvidia-smi -q -d"
            " PERFORMANCE,TEMPERATURE` shows what holds it down. Nothing in the script mends it.",
            "manual",
        ),
        gain=Gain(
            0.0,
            compute * lost,
            "high end: compute kernels follow the clock to its highest; low end: they wait for"
            " memory, or the power limit keeps the clock.",
            ("compute",),
        ),
    )


def fires() -> Evidence:
    return _training({"thermal (hardware)": 0.9, "power cap": 0.1}, mhz=1100)


def clear() -> Evidence:
    """It works as hard as its own power limit lets it."""
    return _training({"power cap": 1.0}, mhz=1500)


def _training(reasons: dict[str, float], mhz: float) -> Evidence:
    clocks = DeviceClocks(samples=20, held_down=reasons, sm_mhz=mhz, sm_max_mhz=1980)
    return Evidence().add(budget(device=True, compute=90, launch=10), clocks)
