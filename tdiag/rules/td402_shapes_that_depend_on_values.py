"""Tensor shapes depend on values

## What it measures
Lines that select by value (`x[mask]`, `nonzero`, `where(mask)`, `unique`, `masked_select`) and that
torch's debug mode saw synchronise: how often, their share of the device idle time after
synchronisations, and the kernels that find and gather the elements.

## Why it is slow
The host needs the size of the result before it can continue. It waits for the device, and the
device then waits for the host. The device counts, scans and gathers, and scatters again in the
backward: several passes where one would do.

## What to do
Keep the shape: `torch.where(mask, x, 0)`, or use the mask as a weight in the sum and in its
divisor. If a loop selects the rows of each group (of each expert), sort the rows by group once,
read the sizes of all groups at once, and split.

## How the gain is computed
From the idle time after synchronisations × these lines' share of them, and from the kernels of
`nonzero`, `masked_select` and `masked_scatter_`. High end: all of that. Low end: half of the time
that the host waits, and half of the kernels.

## When this advice is wrong
If the mask keeps a small part of a large tensor, and much work follows, selecting is cheaper.
"""

from __future__ import annotations

from dataclasses import replace

from tdiag.evidence.device import DeviceParts, DeviceTime, SyncLine, SyncLines, Syncs
from tdiag.evidence.steps import Budget
from tdiag.evidence.store import Evidence
from tdiag.evidence.torch_ops import Ops
from tdiag.model.diagnosis import Fix
from tdiag.model.place import Place
from tdiag.rules.base import Found, Gain, count, ns, where
from tdiag.rules.device_waits import Drains, busy_scale, drains, waits
from tdiag.rules.examples import at, budget, device_time, op_line, ops, sync
from tdiag.rules.loops import SELECTING
from tdiag.rules.thresholds import LOW_END_FRAC
from tdiag.units import per_step, plural

CODE = "TD402"
NAME = "shapes-that-depend-on-values"
CLASS = "sync"
UNTRIED = "needs another expression, without a mask"

# The ops that find the elements, gather them, and scatter them again in the backward.
GATHERING = frozenset({"aten::nonzero", "aten::masked_select", "aten::masked_scatter_"})


def check(
    budget: Budget,
    syncs: Syncs,
    sync_lines: SyncLines,
    ops: Ops,
    device: DeviceTime,
    parts: DeviceParts | None,
) -> Found | None:
    selecting = {line.at.spot for line in ops.lines if SELECTING & line.conversions.keys()}
    mine = [x for x in sync_lines.lines if x.at.spot in selecting]
    if not mine:
        return None
    worst = max(mine, key=lambda line: line.per_step)
    times = sum(line.per_step for line in mine)
    share = times / sum(line.per_step for line in sync_lines.lines)
    found = drains(budget, device, waits(syncs), worst.at, share)
    gathering = sum(x.device_ns for x in parts.ops if x.name in GATHERING) if parts else 0.0
    gathering *= busy_scale(budget, device)
    idle = found.idle if found else 0.0
    if found is None and not gathering:
        return None
    calls = (
        f"{plural(round(times, 1), 'call')} whose result size depends on values{where(worst.at)}"
    )
    costs = [(idle, "the device idles {} after them"), (gathering, "their kernels take {}")]
    costs.sort(reverse=True)
    said = [what.format(per_step(spent, budget.step_ns)) for spent, what in costs if spent]
    return Found(
        summary=f"{calls}: {', and '.join(said)}.",
        evidence=(
            count("synchronisations of these lines", times, "ops", "per_step"),
            *((ns("kernels that find and gather", gathering, "trace"),) if gathering else ()),
            *(found.measures() if found else ()),
        ),
        fix=_fix(worst.at, ops),
        gain=_gain(found, gathering),
        at=worst.at,
    )


def _fix(at: Place, ops: Ops) -> Fix:
    if any(x.in_loop and x.at.spot == at.spot for x in ops.lines):
        return Fix(
            f"If the loop{where(at)} selects the rows of each group, sort the rows by group once,"
            " read the sizes of all groups at once, and split; else keep the shape with"
            " torch.where(mask, x, 0).",
            "review",
            action="Split sorted rows instead of selecting those of each group",
            code="order = group.argsort()\n"
            "sizes = group.bincount(minlength=groups).tolist()  # one wait for all groups\n"
            "parts = x[order].split(sizes)",
        )
    return Fix(
        f"Keep the shape{where(at)}: torch.where(mask, x, 0), or (x * mask).sum() / mask.sum(),"
        " instead of x[mask] or nonzero().",
        "review",
        action="Use torch.where instead of selecting by mask",
    )


def _gain(waits: Drains | None, gathering: float) -> Gain:
    """The waits and the kernels are the host's and the device's, and end one after the other."""
    kernels = Gain(
        gathering * LOW_END_FRAC,
        gathering,
        "high end: neither waits nor kernels that find and gather; low end: half of both.",
        ("compute",),
    )
    if waits is None:
        return kernels
    if not gathering:
        return waits.gain()
    gain = waits.gain()
    return replace(
        kernels,
        low_ns=kernels.low_ns + gain.low_ns,
        high_ns=kernels.high_ns + gain.high_ns,
        components=(*kernels.components, *gain.components),
    )


def fires() -> Evidence:
    return _masked({"nonzero": 3.0})


def clear() -> Evidence:
    """As many synchronisations, by reading values."""
    return _masked({"item": 3.0})


def _masked(conversions: dict[str, float]) -> Evidence:
    line = op_line(55, "loss", 3, conversions=conversions)
    warned = SyncLines(lines=(SyncLine(at=at(55), per_step=3.0), SyncLine(at=at(70), per_step=1.0)))
    waiting = sync(name="cudaStreamSynchronize", count=4.0, at=None)
    step = budget(device=True, compute=20, sync=4, launch=1)
    return Evidence().add(step, Syncs(syncs=(waiting,)), warned, ops(line), device_time(26))
