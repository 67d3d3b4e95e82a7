"""Communication is not overlapped with computation

## What it measures
Device: time of collectives (all-reduce and the like) per step during which no compute kernel runs.
CPU: time in which the training thread waits for other ranks in the clean steps, in calls of
`torch.distributed` and, with DistributedDataParallel, from the moment the last gradient is ready
until backward ends.

## Why it is slow
Gradients could be sent while backward still computes earlier layers. What is sent or waited for
after that makes every rank idle.

## What to do
Overlap more (`gradient_as_bucket_view=True`, `bucket_cap_mb`), reduce less often (`no_sync()` while
accumulating) or send less (a compression hook: bf16 on devices, fp16 on a CPU, where DDP refuses
bf16). This applies to DistributedDataParallel; sharded parameters (FSDP), all-to-all (experts,
sharded embeddings) and pipelines get their own advice, by the collective that takes most of the
time. For your own collectives: `async_op=True` before work that does not need the result, and one
call for many tensors.

## How the gain is computed
High end: all exposed communication. If the time of all ranks is known, only the duration on the
rank that comes last to each collective (CPU: to each step's collectives). Low end: nothing, if the
time is waiting for a slower rank. On a CPU, a wait of less than a fifth of the step gets no gain.

## When this advice is wrong
A collective also lasts until the slowest rank arrives: look for a straggler first. Ranks that share
a CPU's cores also share them with the communication: fewer ranks with more threads each may be
faster.
"""

from __future__ import annotations

from tdiag.evidence.device import DeviceTime
from tdiag.evidence.machine import Environment
from tdiag.evidence.ranks import REDUCER, CollectiveLine, Collectives, Communication, Ddp, Ranks
from tdiag.evidence.steps import Budget, Phases, Steps
from tdiag.evidence.store import Evidence
from tdiag.evidence.torch_ops import Ops
from tdiag.model.diagnosis import Fix
from tdiag.rules.base import Found, Gain, bytes_, count, held, ns, same_function, text, where
from tdiag.rules.device_waits import busy_scale
from tdiag.rules.examples import MS, at, budget, ddp_settings, device_time
from tdiag.rules.stragglers import abstain_unless_alone
from tdiag.rules.thresholds import LARGE_WAIT_FRAC
from tdiag.units import duration, per_step, percent

CODE = "TD903"
NAME = "exposed-communication"
CLASS = "comm"
AFTER = {
    "TD902": "waiting for a late rank looks like communication, and no bucket size shortens it",
    "TD906": "waiting for late ranks looks like communication, and no bucket size shortens it",
}


FSDP = "torch.distributed.fsdp"
_OVERLAP = "high end: all of it overlaps with backward; low end: nothing, if a rank is late."
_ASYNC = (
    "work = torch.distributed.all_reduce(tensor, async_op=True)\n"
    "...  # work that does not need the result\n"
    "work.wait()"
)
# The collective, if DistributedDataParallel does not send it: (action, text).
_OWN_WORDS = {
    "all_gather": (
        "Gather parameters before they are needed",
        "Sharded parameters (FSDP) are gathered just before their layer: use forward prefetching,"
        " wrap larger parts of the model, or keep parameters between forward and backward"
        " (reshard_after_forward=False). In tensor or sequence parallelism, overlap the gathering"
        " with the matrix product that needs it (asynchronous tensor parallelism).",
    ),
    "reduce_scatter": (
        "Scatter gradients during backward",
        "Sharded gradients (FSDP) are reduced after their layer's backward: wrap larger parts of"
        " the model, and reduce them in bf16. While accumulating, skip all reductions but the last"
        " (set_requires_gradient_sync(False)).",
    ),
    "all_to_all": (
        "Overlap the all-to-all with other work",
        "An all-to-all (experts, sharded embedding tables, sequence parallelism) sends tokens or"
        " rows where their weights are: let the dense part of the model, a shared expert or another"
        " micro-batch run at the same time, send narrower types, and balance what each rank"
        " receives.",
    ),
    "send_recv": (
        "Fill the pipeline",
        "Stages of a pipeline send activations to one another, and wait: use more micro-batches, or"
        " an interleaved or zero-bubble schedule (torch.distributed.pipelining), and give each"
        " stage as much work as the others.",
    ),
}


def check(
    budget: Budget,
    communication: Communication | None,
    device: DeviceTime | None,
    collectives: Collectives | None,
    ranks: Ranks | None,
    ddp: Ddp | None,
    environment: Environment | None,
    steps: Steps | None,
    phases: Phases | None,
    ops: Ops | None,
) -> Found | None:
    if budget.has_device and communication is not None and device is not None:
        return _on_device(budget, communication, device, ranks, _advice(communication, ddp, steps))
    if not budget.has_device and collectives is not None:
        return _on_cpu(budget, collectives, ranks, ddp, phases, ops)
    abstain_unless_alone(environment, "no communication of this rank was seen")
    return None


def _on_device(
    budget: Budget, communication: Communication, device: DeviceTime, ranks: Ranks | None, fix: Fix
) -> Found | None:
    exposed = _less_waiting(communication.exposed_ns, ranks)
    if not exposed:
        return None
    cost = exposed * busy_scale(budget, device)
    hidden = 1 - communication.exposed_ns / communication.total_ns
    return Found(
        summary=(
            f"{duration(cost)} of communication per step ({percent(cost / budget.step_ns)}) is not"
            f" overlapped with computation; {percent(hidden)} of all communication is."
        ),
        evidence=(
            ns("exposed communication", exposed, "trace"),
            ns("communication", communication.total_ns, "trace"),
            count("collectives", communication.count, "trace", "per_step"),
        ),
        fix=fix,
        gain=Gain(
            0.0,
            cost,
            _OVERLAP,
            ("comm",),
            high_cuts={"comm": 1 - exposed / communication.exposed_ns},
        ),
    )


def _advice(communication: Communication, ddp: Ddp | None, steps: Steps | None) -> Fix:
    """A run shows whether there is a DistributedDataParallel; a trace may show one at work."""
    if ddp is not None or (steps is None and communication.ddp and _of_ddp(communication)):
        return Fix(
            "Set gradient_as_bucket_view=True and try smaller and larger bucket_cap_mb; use"
            " no_sync() while accumulating, or a bf16 compression hook.",
            "review",
            _intervention(ddp),
            action="Overlap communication with backward",
            code="model = torch.nn.parallel.DistributedDataParallel(\n"
            "    model, gradient_as_bucket_view=True, bucket_cap_mb=50\n"
            ")",
        )
    own = _OWN_WORDS.get(communication.most)
    return Fix(own[1], "review", action=own[0]) if own else _by_hand("")


def _intervention(ddp: Ddp | None) -> str | None:
    return (
        None if ddp is not None and ddp.gradient_as_bucket_view else "ddp.gradient_as_bucket_view"
    )


def _of_ddp(communication: Communication) -> bool:
    """Whether DDP sends it: DDP reduces gradients and sends nothing else between ranks."""
    return communication.most in ("all_reduce", "")


def _by_hand(place: str) -> Fix:
    return Fix(
        f"Start each collective{place} with async_op=True before work that does not need its"
        " result, and wait() after that. Use one call for many small tensors.",
        "review",
        action="Run collectives asynchronously",
        code=_ASYNC,
    )


def _on_cpu(
    budget: Budget, collectives: Collectives, ranks: Ranks | None, ddp: Ddp | None,
    phases: Phases | None, ops: Ops | None,
) -> Found | None:  # fmt: skip
    whole = held(budget, "comm")
    exposed = _less_waiting(whole, ranks)
    if not exposed or not collectives.lines:
        return None
    most = collectives.lines[0]
    packing = _packing(most, phases, ops)
    high = _OVERLAP
    if packing:
        high = f"high end: all of it overlaps with backward, and the {duration(packing)} of packing"
        high += " are gone; low end: nothing, if a rank is late."
    return Found(
        summary=(
            f"The training thread waits {per_step(whole, budget.step_ns)} for the other ranks,"
            f" mostly {_what(most)}."
            + (
                f" {most.at.function} takes {duration(packing)} besides, to pack and unpack."
                if packing and most.at
                else ""
            )
        ),
        evidence=(
            ns("communication not overlapped", whole, "baseline"),
            *(
                (ns("of it, if all ranks arrive together", exposed, "baseline"),)
                * (exposed < whole)
            ),
            text("most in", most.name, "probe"),
            ns("its time", most.wall_ns, "baseline"),
            count("calls", most.count, "baseline", "per_step"),
            *((ns("packing and unpacking", packing, "baseline"),) * (packing > 0)),
            *((bytes_("parameters", ddp.parameter_bytes, "probe"),) if ddp is not None else ()),
        ),
        fix=_of_gradients(most) if packing else _fix(most, ddp),
        # Of less nobody knows whether any can be saved.
        gain=Gain(
            0.0,
            exposed + packing,
            high,
            ("comm", *(("optimizer",) if packing else ())),
        )
        if whole >= LARGE_WAIT_FRAC * budget.step_ns
        else None,
        at=most.at,
    )


def _packing(most: CollectiveLine, phases: Phases | None, ops: Ops | None) -> float:
    """What the user's function that exchanges gradients between backward and the update takes
    besides, ns per step: it copies them into one tensor and back."""
    if phases is None or ops is None or most.at is None or most.by or most.name == REDUCER:
        return 0.0
    # The time of its own line is mostly the exchange.
    lines = [x for x in ops.lines if x.phase == "optimizer" and x.at.spot != most.at.spot]
    whole = sum(x.elapsed_ns for x in lines)
    mine = sum(x.elapsed_ns for x in lines if same_function(x.at, most.at))
    return phases.wall_ns.get("optimizer", 0.0) * mine / whole if whole else 0.0


def _of_gradients(most: CollectiveLine) -> Fix:
    return Fix(
        f"Let DistributedDataParallel exchange the gradients during backward, without copies,"
        f" instead of{where(most.at)}. By hand: leave out what is not trained.",
        "review",
        action="Exchange gradients during backward, and only trained ones",
        code="model = torch.nn.parallel.DistributedDataParallel(\n"
        "    model, gradient_as_bucket_view=True\n"
        ")",
    )


def _less_waiting(exposed: float, ranks: Ranks | None) -> float:
    """Communication without waiting for late ranks, which TD902 and TD906 report."""
    if ranks is None or ranks.shortest_ns is None:
        return exposed
    return min(exposed, ranks.shortest_ns)


def _what(line: CollectiveLine) -> str:
    if line.name == REDUCER:
        return "for DistributedDataParallel's gradient reduction"
    return f"in {line.name}{where(line.at)}"


def _fix(most: CollectiveLine, ddp: Ddp | None) -> Fix:
    if most.by.startswith(FSDP):
        kind = next((kind for kind in _OWN_WORDS if most.name.startswith(kind)), "all_gather")
        return Fix(_OWN_WORDS[kind][1], "review", action=_OWN_WORDS[kind][0])
    if most.name != REDUCER:
        return _by_hand(where(most.at))
    view = "" if ddp is not None and ddp.gradient_as_bucket_view else "gradient_as_bucket_view=True"
    hooked = ddp is not None and bool(ddp.comm_hook)
    hook = "" if hooked else " A compression hook (fp16_compress_hook) halves the bytes."
    return Fix(
        "Reduce gradients less often: a larger batch, or no_sync() on all micro-batches but the"
        f" last. Try {f'{view} and ' if view else ''}smaller and larger bucket_cap_mb in"
        f" DistributedDataParallel.{hook}",
        "review",
        _intervention(ddp),
        action="Reduce gradients less often",
        code="with model.no_sync():  # all micro-batches but the last\n    loss.backward()",
    )


def fires() -> Evidence:
    found = Communication(total_ns=30 * MS, exposed_ns=12 * MS, count=14.0)
    return Evidence().add(
        budget(device=True, compute=60, comm=12), found, device_time(72), ddp_settings()
    )


def clear() -> Evidence:
    """As much communication, overlapped with backward."""
    found = Communication(total_ns=30 * MS, exposed_ns=0.0, count=14.0)
    return Evidence().add(budget(device=True, compute=60), found, device_time(60))


def on_cpu(exposed_ms: float, name: str = REDUCER, by: str = "") -> Evidence:
    """A step on a CPU that computes for 60 ms, plus its wait for the other ranks."""
    wait = CollectiveLine(name=name, at=at(30), count=1.0, wall_ns=exposed_ms * MS, by=by)
    step = budget(forward=20, backward=40, comm=exposed_ms)
    return Evidence().add(step, Collectives(lines=(wait,)))
