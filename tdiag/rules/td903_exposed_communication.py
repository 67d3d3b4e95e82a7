"""Communication that nothing overlaps

## What it measures
With a device: time of collectives (all-reduce and the like) per step during which no compute kernel
runs. On a CPU: time in which the training thread waits for other processes of the job in the clean
steps, in calls of `torch.distributed` and, with DistributedDataParallel, from the moment the last
gradient was ready until backward ended.

## Why it is slow
Gradients could be sent while earlier layers' backward still computes; what is sent after it, or
waited for, makes every rank idle.

## What to do
Larger overlap (`gradient_as_bucket_view=True`, `bucket_cap_mb`), fewer collectives (`no_sync()`
while accumulating), smaller ones (a compression hook: bf16 on devices, fp16 on a CPU, where DDP
refuses bf16). Calls by hand: `async_op=True` before work that does not need the result, one call
for many tensors.

## How the gain is computed
High end: all exposed communication; where the time of all ranks is known, of each collective (on a
CPU: of each step's) only what it lasts on the rank that comes last to it. Low end: nothing, if the
time is a wait for a slower rank.

## When this advice is wrong
A collective also lasts as long as the slowest rank takes to arrive: look for a straggler first.
Ranks that share a CPU's cores also share them with the communication: fewer ranks with more threads
each may be faster.
"""

from __future__ import annotations

from tdiag.evidence.device import Communication, DeviceTime, Ranks
from tdiag.evidence.kinds import Budget, Environment, Steps
from tdiag.evidence.store import Evidence
from tdiag.evidence.training import REDUCER, Collective, Collectives, Ddp
from tdiag.model.diagnosis import Fix
from tdiag.rules.base import Abstain, Found, Gain, held, where
from tdiag.rules.examples import MS, at, budget, device_time
from tdiag.rules.examples_ranks import ddp_settings
from tdiag.rules.measures import bytes_, count, ns, text
from tdiag.units import duration, percent

CODE = "TD903"
NAME = "exposed-communication"
CLASS = "comm"
AFTER = {
    "TD902": "waiting for a late rank looks like communication, and no bucket size shortens it",
    "TD906": "waiting for late ranks looks like communication, and no bucket size shortens it",
}


_SEEN = "no communication of this rank was seen"
_OVERLAP = "high end: all of it overlaps backward; low end: it is a wait for a slower rank."
_BY_HAND = (
    "each with async_op=True before work that does not need its result, and its wait() after that;"
    " one call for many small tensors"
)


def check(
    budget: Budget,
    communication: Communication | None,
    device: DeviceTime | None,
    collectives: Collectives | None,
    ranks: Ranks | None,
    ddp: Ddp | None,
    environment: Environment | None,
    steps: Steps | None,
) -> Found | None:
    if budget.has_device and communication is not None and device is not None:
        return _on_device(budget, communication, device, ranks, _buckets(ddp, steps))
    if not budget.has_device and collectives is not None:
        return _on_cpu(budget, collectives, ranks, ddp)
    if environment is not None and environment.world_size == 1:
        return None
    raise Abstain(_SEEN)


def _on_device(
    budget: Budget,
    communication: Communication,
    device: DeviceTime,
    ranks: Ranks | None,
    advice: str,
) -> Found | None:
    exposed = _less_waiting(communication.exposed_ns, ranks)
    if not exposed:
        return None
    cost = exposed * budget.step_ns / device.step_ns
    hidden = 1 - communication.exposed_ns / communication.total_ns
    return Found(
        summary=(
            f"{duration(cost)} of communication a step ({percent(cost / budget.step_ns)}) run with"
            f" no compute beside them; {percent(hidden)} of all communication is hidden."
        ),
        evidence=(
            ns("exposed communication", exposed, "trace"),
            ns("communication", communication.total_ns, "trace"),
            count("collectives", communication.count, "trace", "per_step"),
        ),
        fix=Fix(advice, "review"),
        gain=Gain(
            0.0,
            cost,
            _OVERLAP,
            ("comm",),
            high_cuts={"comm": 1 - exposed / communication.exposed_ns},
        ),
    )


def _buckets(ddp: Ddp | None, steps: Steps | None) -> str:
    """A run sees whether there is a DistributedDataParallel; a bare trace does not tell."""
    advice = (
        "DistributedDataParallel(model, gradient_as_bucket_view=True, bucket_cap_mb=…) with"
        " buckets tried smaller and larger; no_sync() while accumulating; a bf16 hook."
    )
    if ddp is not None:
        return advice
    by_hand = f"Collectives: {_BY_HAND}."
    return by_hand if steps is not None else f"{by_hand} Where it is used, {advice}"


def _on_cpu(
    budget: Budget, collectives: Collectives, ranks: Ranks | None, ddp: Ddp | None
) -> Found | None:
    whole = held(budget, "comm")
    exposed = _less_waiting(whole, ranks)
    if not exposed or not collectives.lines:
        return None
    most = collectives.lines[0]
    return Found(
        summary=(
            f"The training thread waits {duration(whole)} a step"
            f" ({percent(whole / budget.step_ns)}) for the other ranks, mostly {_what(most)}."
        ),
        evidence=(
            ns("communication that nothing overlaps", whole, "baseline"),
            *((ns("of it, if all ranks come together", exposed, "baseline"),) * (exposed < whole)),
            text("most in", most.name, "probe"),
            ns("its time", most.wall_ns, "baseline"),
            count("times", most.count, "baseline", "per_step"),
            *((bytes_("parameters", ddp.parameter_bytes, "probe"),) if ddp is not None else ()),
        ),
        fix=Fix(_advice(most, ddp), "review"),
        gain=Gain(0.0, exposed, _OVERLAP, ("comm",)),
        at=most.at,
    )


def _less_waiting(exposed: float, ranks: Ranks | None) -> float:
    """The rest is waiting for late ranks: TD902, TD906."""
    if ranks is None or ranks.shortest_ns is None:
        return exposed
    return min(exposed, ranks.shortest_ns)


def _what(line: Collective) -> str:
    if line.name == REDUCER:
        return "for the sums of DistributedDataParallel's gradients"
    return f"in {line.name}{where(line.at)}"


def _advice(most: Collective, ddp: Ddp | None) -> str:
    if most.name != REDUCER:
        return f"Collectives{where(most.at)}: {_BY_HAND}."
    view = (
        "" if ddp is not None and ddp.gradient_as_bucket_view else "gradient_as_bucket_view=True, "
    )
    hook = "" if ddp is not None and ddp.comm_hook else (
        "; model.register_comm_hook(None, default_hooks.fp16_compress_hook), which halves the bytes"
    )  # fmt: skip
    return (
        "Fewer sums: a larger batch, or no_sync() on all micro-batches but the last;"
        f" DistributedDataParallel(model, {view}bucket_cap_mb=…) with buckets tried smaller and"
        f" larger{hook}."
    )


def fires() -> Evidence:
    found = Communication(total_ns=30 * MS, exposed_ns=12 * MS, count=14.0)
    return Evidence().add(
        budget(device=True, compute=60, comm=12), found, device_time(72), ddp_settings()
    )


def clear() -> Evidence:
    """As much communication, under the backward pass."""
    found = Communication(total_ns=30 * MS, exposed_ns=0.0, count=14.0)
    return Evidence().add(budget(device=True, compute=60), found, device_time(60))


def on_cpu(exposed_ms: float, name: str = REDUCER) -> Evidence:
    """A step on a CPU that computes 60 ms beside what it waits for the other ranks."""
    wait = Collective(name=name, at=at(30), count=1.0, wall_ns=exposed_ms * MS)
    step = budget(forward=20, backward=40, comm=exposed_ms)
    return Evidence().add(step, Collectives(lines=(wait,)))
