"""A step's tensors are kept alive, with their graph

## What it measures
Tensors made in a counted step that still exist several steps later, by the line that made them: how
many, how many bytes, and whether they hold their autograd graph. Graphs that grow from step to step
beyond their own step's calls.

## Why it is slow
A loss put into a list, or added to a running total, keeps every activation its graph refers to.
Memory grows each step until the run fails, and a total with a growing graph makes each backward
longer.

## What to do
Keep the number, not the tensor: `loss.item()` on a CPU or every few dozen steps, `loss.detach()` on
a device.

## How the gain is computed
No gain per step is claimed. The report gives the growth and the number of steps until free memory
is full.

## When this advice is wrong
Some memory is meant to grow: a replay buffer, features stored for an epoch. Truncated
backpropagation keeps the state of the last steps on purpose.
"""

from __future__ import annotations

import math

from tdiag.evidence.machine import Environment, System
from tdiag.evidence.memory import DeviceMemory, Kept, MemoryGrowth
from tdiag.evidence.store import Evidence
from tdiag.model.diagnosis import Fix, Measure
from tdiag.model.place import Place
from tdiag.model.threshold import Threshold
from tdiag.rules.base import Abstain, Found, bytes_, count, where
from tdiag.rules.examples import GB, MB, at, environment, system
from tdiag.rules.memory_in_use import device_memory
from tdiag.units import size

CODE = "TD805"
NAME = "graph-kept-alive"
CLASS = "memory"

LARGE_BYTES = Threshold(
    1 << 20, "bytes per step", "By arithmetic: ten thousand steps of less keep less than 10 GiB."
)
MANY_STEPS = Threshold(
    1_000_000,
    "steps",
    "Heuristic: few trainings take more steps, so memory that lasts longer is enough.",
)


def check(
    growth: MemoryGrowth,
    environment: Environment,
    system: System | None,
    memory: DeviceMemory | None,
) -> Found | None:
    graphs = [x for x in growth.kept if x.graphs]
    if not graphs and not growth.graphs and growth.bytes_per_step < LARGE_BYTES:
        return None
    at = _place(growth, graphs)
    grows = max(growth.bytes_per_step, growth.device_bytes_per_step or 0.0)
    free = _free(system, environment, memory)
    full_in = free / grows if free and grows else math.inf
    until = f" and is full after {full_in:.0f} steps" if full_in < MANY_STEPS else ""
    more = f" Memory grows by {size(grows)} per step{until}." if grows else ""
    return Found(
        summary=f"{_what(growth, graphs)}{where(at)}.{more}",
        evidence=tuple(_measures(growth, graphs, free)),
        fix=_fix(bool(graphs or growth.graphs), where(at)),
        at=at,
    )


def _place(growth: MemoryGrowth, graphs: list[Kept]) -> Place | None:
    if growth.graphs and not graphs:
        return growth.graphs[0].at
    return (graphs or list(growth.kept))[0].at


def _what(growth: MemoryGrowth, graphs: list[Kept]) -> str:
    if graphs:
        return f"A tensor is kept with its graph for {growth.since_steps} steps or more"
    if growth.graphs:
        nodes = growth.graphs[0].nodes
        return f"A graph gains {nodes:.0f} nodes each step, because it holds the earlier ones"
    return f"Tensors are kept for {growth.since_steps} steps or more"


def _free(
    system: System | None, environment: Environment, memory: DeviceMemory | None
) -> int | None:
    """Free bytes of the memory that holds the tensors; None if unknown."""
    if not environment.device_count:
        return system.ram_available_bytes if system else None
    try:
        used, total = device_memory(memory)
    except Abstain:
        return None
    return total - used


def _measures(growth: MemoryGrowth, graphs: list[Kept], free: float | None) -> list[Measure]:
    found = [bytes_("kept, per step", growth.bytes_per_step, "ops")]
    if growth.device_bytes_per_step is not None:
        found.append(bytes_("device memory, per step", growth.device_bytes_per_step, "probe"))
    found += [
        count(f"tensors made{where(kept.at)}", kept.tensors, "ops", "per_step")
        for kept in (graphs or list(growth.kept))[:2]
    ]
    found += [
        count(f"nodes gained{where(graph.at)}", graph.nodes, "ops", "per_step")
        for graph in growth.graphs[:1]
    ]
    if free is not None:
        found.append(bytes_("memory free", free, "system"))
    return found


def _fix(graph: bool, place: str) -> Fix:
    if not graph:
        return Fix(
            f"Drop the tensors made{place} at the end of their step, or keep them on disk.",
            "safe",
            action="Drop the step's tensors at its end",
        )
    return Fix(
        f"Before a value made{place} goes into a list or a total, call .detach() on a device, or"
        " .item() on a CPU.",
        "safe",
        action="Keep numbers instead of tensors with their graph",
        code="losses.append(loss.detach())  # .item() on a CPU",
    )


def fires() -> Evidence:
    """``losses.append(loss)``: each keeps its step's activations."""
    kept = Kept(at=at(52), tensors=1.0, bytes=4.0, graphs=1.0)
    grown = MemoryGrowth(kept=(kept,), bytes_per_step=38.0 * MB, since_steps=3)
    return Evidence().add(grown, system(ram_available_bytes=16 * GB), environment())


def clear() -> Evidence:
    """``losses.append(loss.detach())``: four bytes a step."""
    kept = Kept(at=at(52), tensors=1.0, bytes=4.0, graphs=0.0)
    grown = MemoryGrowth(kept=(kept,), bytes_per_step=4.0, since_steps=3)
    return Evidence().add(grown, system(ram_available_bytes=16 * GB), environment())
