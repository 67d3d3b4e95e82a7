"""What a step made is kept, and its graph with it

## What it measures
Tensors that a counted step made and that still lived several steps later, by the line that made
them: how many, how many bytes, and whether they hold the graph of their making. Graphs that grow
from step to step, by more than the calls of their own step make.

## Why it is slow
A loss that is put into a list, or added to a running total, keeps every activation of its step that
its graph refers to. Memory grows with each step until it ends the run, and a total whose graph
grows makes each backward longer.

## What to do
Keep the number and not the tensor: `loss.item()` on a CPU or every so many steps, `loss.detach()`
on a device.

## How the gain is computed
None is claimed per step. What is said is the growth, and how many steps fill what is free.

## When this advice is wrong
Memory that is meant to grow: a replay buffer, features kept for a whole epoch. Truncated
backpropagation keeps the state of the last steps on purpose.
"""

from __future__ import annotations

import math

from tdiag.evidence.kinds import Environment, System
from tdiag.evidence.store import Evidence
from tdiag.evidence.training import Kept, MemoryGrowth
from tdiag.model.diagnosis import Fix, Measure
from tdiag.model.place import Place
from tdiag.rules.base import Found, where
from tdiag.rules.examples import GB, MB, at, environment, system
from tdiag.rules.measures import bytes_, count
from tdiag.units import size

CODE = "TD805"
NAME = "graph-kept-alive"
CLASS = "memory"

# Without a graph, less is not worth a word: ten thousand steps keep 10 GiB.
LARGE_BYTES = 1 << 20
# Few trainings take more steps than this; memory that lasts longer is not worth a word. Ours.
MANY_STEPS = 1_000_000


def check(growth: MemoryGrowth, system: System | None, environment: Environment) -> Found | None:
    graphs = [x for x in growth.kept if x.graphs]
    if not graphs and not growth.graphs and growth.bytes_per_step < LARGE_BYTES:
        return None
    at = _place(growth, graphs)
    grows = max(growth.bytes_per_step, growth.device_bytes_per_step or 0.0)
    free = _free(system, environment)
    full_in = free / grows if free and grows else math.inf
    until = f", which fills what is free in {full_in:.0f} steps" if full_in < MANY_STEPS else ""
    graph = " and what its graph holds" if graphs else ""
    more = f": {size(grows)}{graph} more in each step" if grows else ""
    return Found(
        summary=f"{_what(growth, graphs)}{where(at)}{more}{until}.",
        evidence=tuple(_measures(growth, graphs, free)),
        fix=Fix(_advice(bool(graphs or growth.graphs), where(at)), "safe"),
        at=at,
    )


def _place(growth: MemoryGrowth, graphs: list[Kept]) -> Place | None:
    if growth.graphs and not graphs:
        return growth.graphs[0].at
    return (graphs or list(growth.kept))[0].at


def _what(growth: MemoryGrowth, graphs: list[Kept]) -> str:
    if graphs:
        return f"A tensor is kept for {growth.since_steps} steps and more with its graph"
    if growth.graphs:
        nodes = growth.graphs[0].nodes
        return f"A graph gains {nodes:.0f} nodes in each step, since it holds those before"
    return f"Tensors are kept for {growth.since_steps} steps and more"


def _free(system: System | None, environment: Environment) -> float | None:
    """Bytes that are left where the tensors lie; None where that is not known."""
    if system is None:
        return None
    if environment.device_count == 0:
        return system.ram_available_bytes
    used, total = system.gpu_memory_used_bytes, system.gpu_memory_total_bytes
    known = environment.device_count == 1 and used is not None and total is not None
    return float((total or 0) - (used or 0)) if known else None


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


def _advice(graph: bool, place: str) -> str:
    if not graph:
        return f"Let go of what is made{place} when its step is over, or keep it on disk."
    return (
        f"Keep numbers, not tensors: .item() of what is made{place} (on a device .detach(), and"
        " .item() every so many steps), before it goes into a list or a total."
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
