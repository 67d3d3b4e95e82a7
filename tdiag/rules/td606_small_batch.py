"""The batch is small and device memory is free

## What it measures
The peak of torch's allocated device memory compared with the device's total, and the device's idle
time before kernels that start the moment they are launched.

## Why it is slow
Launching a kernel costs the host the same for few samples as for many. If a batch keeps the device
busy for less time than the launches take, the device idles every step.

## What to do
Use a larger batch, and adjust the learning rate.

## How the gain is computed
No gain is claimed here: the rule for launch-bound steps claims the launch time. The largest batch
that fits follows from memory: allocated memory grows at most in proportion to the batch, because
weights and optimizer state stay the same.

## When this advice is wrong
A larger batch changes the optimisation and may need more epochs to the same loss. With samples of
varying size, a few steps may not show the peak.
"""

from __future__ import annotations

from tdiag.evidence.device import DeviceTime, Kernels
from tdiag.evidence.feeding import Loader, Loaders
from tdiag.evidence.memory import DeviceMemory
from tdiag.evidence.steps import Budget
from tdiag.evidence.store import Evidence
from tdiag.model.diagnosis import Fix, Measure
from tdiag.model.threshold import NOTICEABLE_FRAC
from tdiag.rules.base import Found, bytes_, count, frac, ns, where
from tdiag.rules.device_waits import starved_ns
from tdiag.rules.examples import GB, MS, budget, device_holds, device_time, loaders
from tdiag.rules.memory_in_use import PEAK, device_memory
from tdiag.rules.thresholds import USABLE_MEMORY_FRAC
from tdiag.units import duration, percent, size

CODE = "TD606"
NAME = "small-batch"
CLASS = "compute"
AFTER = {"TD709": "a larger batch hides Python time between the torch calls but does not remove it"}


def check(
    budget: Budget,
    device: DeviceTime,
    loaders: Loaders,
    memory: DeviceMemory,
    kernels: Kernels | None,
) -> Found | None:
    loader = loaders.train()
    if not budget.has_device or loader is None or not loader.batch_size:
        return None
    used, total = device_memory(memory)
    starved = starved_ns(budget, device)
    largest = _largest(loader, loader.batch_size, used, total)
    if starved < NOTICEABLE_FRAC * budget.step_ns or largest == loader.batch_size:
        return None
    return Found(
        summary=(
            f"A batch of {loader.batch_size} uses {size(used)} of the device's {size(total)}"
            f" ({percent(used / total)}), and the device waits {duration(starved)} per step for"
            f" launches ({percent(starved / budget.step_ns)}). A batch of {largest} fits."
        ),
        evidence=(
            bytes_(PEAK, used, "probe"),
            bytes_("device memory", total, "probe"),
            count("batch_size", loader.batch_size, "probe"),
            ns("device idle, waiting for a launch", starved, "trace"),
            *_occupancy(kernels),
        ),
        fix=Fix(
            f"Set batch_size={2 * loader.batch_size} instead of"
            f" {loader.batch_size}{where(loader.created_at)}, and adjust the learning rate."
            f" Keep doubling, up to {largest}, while samples per second grow.",
            "review",
            action=f"Double the batch size to {2 * loader.batch_size}",
        ),
        at=loader.created_at,
    )


def _occupancy(kernels: Kernels | None) -> tuple[Measure, ...]:
    """Mean of the kernels with an estimated occupancy, weighted by their time."""
    known = [x for x in kernels.families if x.occupancy_frac is not None] if kernels else []
    lasted = sum(x.device_ns for x in known)
    if not lasted:
        return ()
    mean = sum((x.occupancy_frac or 0.0) * x.device_ns for x in known) / lasted
    return (frac("occupancy of the kernels", mean, "trace"),)


def _largest(loader: Loader, batch: int, used: int, total: int) -> int:
    """The batch, doubled as often as memory and the dataset allow."""
    factor = 1
    while (
        2 * factor * used <= USABLE_MEMORY_FRAC * total
        and 2 * factor * batch <= (loader.dataset_len or 2 * factor * batch)
    ):  # fmt: skip
        factor *= 2
    return factor * batch


def fires() -> Evidence:
    return _training(used=16 * GB)


def clear() -> Evidence:
    """The same step on a device whose memory the batch fills."""
    return _training(used=60 * GB)


def _training(used: int) -> Evidence:
    return Evidence().add(
        budget(device=True, compute=14, launch=6), loaders(),
        device_time(20, busy_frac=0.7, launch_starved_ns=6.0 * MS),
        device_holds(used),
    )  # fmt: skip
