"""The optimizer walks its parameters call by call

## What it measures
The share of the step that passes inside the optimizer's own step (on a device: idles during it),
for optimizers of torch that have a fused form which is not switched on, and the number of tensors
they update.

## Why it is slow
Unfused, every tensor takes several calls, each of which passes over its memory once: Adam takes a
dozen. The fused form does all of it in one pass per tensor.

## What to do
`fused=True` in the optimizer's constructor.

## How the gain is computed
From the optimizer's time on a CPU, and what `fused=True` won where it was tried: SGD 1.5 to 4.2
times, Adam and AdamW 2.75 to 7.2 times, Adagrad 2.7 to 5.8 times (large tensors
least, small ones most). With a device, from the time for which it idles during the optimizer: all
of it at best (replayed where the trace allows it), nothing at worst.

## When this advice is wrong
Torch before 2.4 has no fused form on a CPU. Results differ in the last bits. Optimizers written by
hand have no such switch (TD710).
"""

from __future__ import annotations

from tdiag.evidence.kinds import Budget, Environment, Optimizer, Optimizers, Phases
from tdiag.evidence.store import Evidence
from tdiag.model.diagnosis import Fix
from tdiag.rules.base import Found, Gain, held, where
from tdiag.rules.examples import budget, environment, optimizers
from tdiag.rules.measures import count, ns, text
from tdiag.units import duration, percent

CODE = "TD702"
NAME = "optimizer-not-fused"
CLASS = "overhead"

# Loop against fused=True on one thread, torch 2.13, tensors of 256 to 1,048,576 numbers: SGD with
# momentum 1.5× to 4.2×, Adam 2.75× to 7.2×, AdamW 3.5× to 7.1×, Adagrad 2.7× to 5.8×.
FUSED_WINS = {
    "SGD": (1.5, 4.2), "Adam": (2.75, 7.2), "AdamW": (2.75, 7.2), "Adagrad": (2.7, 5.8),
}  # fmt: skip
# Adagrad's fused form is for the CPU alone (torch.optim.Adagrad's documentation).
FUSED_ONLY_ON_CPU = ("Adagrad",)
# Under a tenth of the step, the least win of 1.5× would be 1.03×, hardly more than the ±1.4 % by
# which a program differs from itself.
MIN_OPTIMIZER_FRAC = 0.1
# The release that brought the fused forms to the CPU (torch 2.4 release notes).
FUSED_ON_CPU_SINCE = (2, 4)


def check(
    budget: Budget, optimizers: Optimizers, environment: Environment, phases: Phases | None
) -> Found | None:
    slow = [x for x in optimizers.optimizers if _unfused(x, budget.has_device)]
    updating, source = held(budget, "optimizer"), "budget"
    if phases is not None and phases.update_ns is not None and not budget.has_device:
        updating, source = phases.update_ns, "baseline"  # clipping is no part of it
    if not slow or updating < MIN_OPTIMIZER_FRAC * budget.step_ns:
        return None
    if not budget.has_device and _version(environment.torch) < FUSED_ON_CPU_SINCE:
        return None
    largest = max(slow, key=_tensors)
    low, high = FUSED_WINS[largest.name]
    gain = (updating * (1 - 1 / low), updating * (1 - 1 / high))
    cuts: dict[str, float] = {}
    if budget.has_device:  # foreach is the default there, and what idles may be waiting
        gain, cuts = (0.0, updating), {"host optimizer": 0.0}
    return Found(
        summary=(
            f"{largest.name} updates {largest.tensors} tensors without its fused form:"
            f" {duration(updating)} a step ({percent(updating / budget.step_ns)})."
        ),
        evidence=(
            ns("in the optimizer's step, per step", updating, source),
            count("parameter tensors", largest.tensors, "probe"),
            text("fused", str(largest.config.get("fused")), "probe"),
        ),
        fix=Fix(
            f"torch.optim.{largest.name}(..., fused=True){where(largest.created_at)}.",
            "review",
            "fused",
        ),
        gain=Gain(
            *gain,
            f"fused {largest.name} was {low:g} to {high:g} times as fast where it was tried on a"
            " CPU; on a device, its idle time during the optimizer.",
            ("optimizer",),
            high_cuts=cuts,
        ),
        at=largest.created_at,
    )


def _unfused(optimizer: Optimizer, has_device: bool) -> bool:
    if has_device and optimizer.name in FUSED_ONLY_ON_CPU:
        return False
    return optimizer.name in FUSED_WINS and not optimizer.config.get("fused")


def _tensors(optimizer: Optimizer) -> int:
    return optimizer.tensors


def _version(torch: str) -> tuple[int, ...]:
    """``2.13.0+cpu`` → (2, 13)."""
    return tuple(int(part) for part in torch.split("+")[0].split(".")[:2] if part.isdigit())


def fires() -> Evidence:
    step = budget(forward=10, backward=20, optimizer=12)
    return Evidence().add(step, optimizers("Adam", fused=None), environment())


def clear() -> Evidence:
    """The same optimizer, fused."""
    step = budget(forward=10, backward=20, optimizer=12)
    return Evidence().add(step, optimizers("Adam", fused=True), environment())
