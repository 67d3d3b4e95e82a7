"""Activations are stored in addition to their inputs

## What it measures
Calls of ReLU-like functions that are not in place, by line, and the bytes of their inputs that are
still in memory when backward begins although nothing needs them: what `inplace` would free.

## Why it is slow
It costs memory, not time: each input is held from forward to backward next to the result, but only
the result is needed.

## What to do
Set `inplace=True` where nothing else uses the input and the backward of the function that made it
does not need it, for example after a convolution, a linear layer or a batch norm.

## How the gain is computed
No time is predicted, only memory. It is reported if it is a noticeable part of the memory in use.

## When this advice is wrong
In-place functions fail where something else needs the input, in backward or in a residual path;
torch then raises an error. A compiled model frees such inputs by itself.
"""

from __future__ import annotations

from tdiag.evidence.machine import Environment, System
from tdiag.evidence.memory import DeviceMemory
from tdiag.evidence.store import Evidence
from tdiag.evidence.training import Activation, Layers
from tdiag.model.diagnosis import Fix
from tdiag.model.threshold import NOTICEABLE_FRAC
from tdiag.rules.base import Abstain, Found, bytes_, count, where
from tdiag.rules.examples import GB, MB, at, environment, system
from tdiag.rules.memory_in_use import in_use
from tdiag.units import percent, size

CODE = "TD808"
NAME = "activations-out-of-place"
CLASS = "memory"


def check(
    layers: Layers, environment: Environment, system: System | None, memory: DeviceMemory | None
) -> Found | None:
    if layers.out_of_place is None:
        raise Abstain("the model's calls were not followed (window ops)")
    mine = sorted((x for x in layers.out_of_place if x.held_bytes), key=lambda x: -x.held_bytes)
    if not mine:
        return None
    held = sum(x.held_bytes for x in mine)
    used = in_use(system, environment, memory)
    if held < NOTICEABLE_FRAC * used:
        return None
    first = mine[0]
    names = " and ".join(sorted({x.name for x in mine[:2]}))
    return Found(
        summary=(
            f"{names}{where(first.at)} holds {size(held)} of inputs until backward that nothing"
            f" needs: {percent(held / used)} of the {size(used)} in use."
        ),
        evidence=(
            bytes_("inputs held and not needed", held, "ops"),
            count("calls", sum(x.calls for x in mine), "ops", "per_step"),
            bytes_("memory in use, peak", used, "probe" if environment.device_count else "system"),
        ),
        fix=Fix(
            f"Set inplace=True in {first.name}{where(first.at)}"
            + (
                f" ({size(first.held_bytes)} there), and at {len(mine) - 1} more lines."
                if len(mine) > 1
                else "."
            ),
            "review",
            action="Compute activations in place",
        ),
        at=first.at,
    )


def fires() -> Evidence:
    return _training(held=900 * MB)


def clear() -> Evidence:
    """Little compared with the memory in use."""
    return _training(held=50 * MB)


def _training(held: float) -> Evidence:
    relu = Activation(
        name="relu", at=at(24, "forward"), calls=16.0, bytes=1200.0 * MB, held_bytes=float(held)
    )
    layers = Layers(
        classes={"Conv2d": 20, "ReLU": 16}, mode_dependent=(),
        dtypes={"torch.float32": 45_000_000}, conv_bytes=45_000_000, channels_last_bytes=0,
        bias_before_norm=(), out_of_place=(relu,),
    )  # fmt: skip
    return Evidence().add(layers, system(rss_bytes=6 * GB), environment())
