"""Building blocks of the rules' ``fires`` and ``clear`` examples: made-up runs."""

from __future__ import annotations

import statistics
from typing import Any

from msgspec.structs import replace

from tdiag.evidence.device import Copy, DeviceTime, KernelFamily, Kernels, Sync
from tdiag.evidence.feeding import FetchPart, Loader, Loaders, TracedFetches
from tdiag.evidence.machine import Environment, System, Threads
from tdiag.evidence.memory import AllocatorCalls, DeviceMemory
from tdiag.evidence.ranks import Ddp, Ranks, RankTime
from tdiag.evidence.roofline import OpWork, Roof, Work
from tdiag.evidence.sampled import WRITERS, CallFrame, CallTrees, StackLine, Stacks
from tdiag.evidence.steps import Budget, Phases, TracedSteps
from tdiag.evidence.torch_ops import HostOp, HostOps, MatrixOp, OpLine, Ops
from tdiag.evidence.training import Flags, Module, Optimizer, Optimizers
from tdiag.model.place import Place

MS = 1_000_000
MB = 1_000_000
GB = 1_000_000_000


def at(line: int, function: str = "", file: str = "/home/me/train.py") -> Place:
    return Place(file=file, line=line, function=function)


def budget(*, device: bool = False, **components_ms: float) -> Budget:
    """A step made of these components, in ms."""
    components = {name: round(ms * MS) for name, ms in components_ms.items()}
    total = sum(components.values())
    return Budget(step_ns=total, components_ns=components, has_device=device)


def phases(counts: dict[str, float] | None = None, /, **wall_ms: float) -> Phases:
    wall = {name: ms * MS for name, ms in wall_ms.items()}
    return Phases(wall_ns=wall, cpu_ns=wall, counts=counts or dict.fromkeys(wall, 1.0))


_LOADER = Loader(
    id=1, role="train", created_at=at(41), dataset_class="Photos", dataset_at=at(12, "__getitem__"),
    dataset_len=50_000, collate_name="default_collate", collate_at=None, batch_size=64,
    num_workers=0, prefetch_factor=None, pin_memory=False, persistent_workers=False, in_order=True,
    start_method=None, worker_start_ns=(), fetch_count=100, fetch_ns=(60 * MS,) * 100,
    load_ns=55.0 * MS, load_cpu_ns=54.0 * MS, collate_ns=5.0 * MS, collate_cpu_ns=5.0 * MS,
    runqueue_ns=0.5 * MS, read_bytes=0.0, rchar_bytes=6.0 * MB, major_faults=0.0,
    batch_bytes=38.5 * MB, batch_dtypes={"float32": 38.5 * MB},
)  # fmt: skip


def loaders(**changes: Any) -> Loaders:
    """One training loader without workers that fetches a batch in 60 ms on one core."""
    once = {"sampler_len": changes.get("dataset_len", _LOADER.dataset_len)}
    return Loaders(loaders=(replace(_LOADER, **{**once, **changes}),))


def system(**changes: Any) -> System:
    """Eight cores, one in use, 32 GB of free memory."""
    plain = System(
        cores_allowed=8.0, cores_machine=8, cores_used=1.1, machine_busy_cores=1.2,
        rss_bytes=2 * GB, ram_available_bytes=32 * GB,
    )  # fmt: skip
    return replace(plain, **changes)


def stack(
    line: int, share: float, leaf: str = "", phase: str = "", function: str = ""
) -> StackLine:
    """A line that takes this share of the samples; ``leaf``: the innermost frame under it."""
    place = at(line, function)
    logging = (("", share),) if WRITERS.search(leaf) else ()
    return StackLine(
        at=place, self_frac=share, leaf=leaf, phase=phase, own_frac=share, logging=logging
    )


def stacks(training: tuple[StackLine, ...] = (), workers: tuple[StackLine, ...] = ()) -> Stacks:
    return Stacks(
        source="py-spy",
        samples=2000,
        training=training,
        workers=workers,
        worker_samples=2000 if workers else 0,
    )


def call_tree(*frames: tuple[str, int, float]) -> CallTrees:
    """Function, line and share of the samples; each is called by the one before."""
    return CallTrees(
        training=tuple(
            CallFrame(name=name, file=at(1).file, line=line, parent=n - 1, frac=share, user=True)
            for n, (name, line, share) in enumerate(frames)
        ),
        workers=(),
    )


def op_line(line: int, phase: str, calls: float, **changes: Any) -> OpLine:
    """A line that issues ``calls`` torch calls per step, each of 5 µs."""
    plain = OpLine(
        at=at(line), phase=phase, calls=calls, grad_calls=0.0, conversions={}, constructions=0.0,
        elapsed_ns=calls * 5000, in_loop=False,
    )  # fmt: skip
    return replace(plain, **changes)


def ops(*lines: OpLine) -> Ops:
    return Ops(steps=2, lines=lines)


def flags(**changes: Any) -> Flags:
    """Torch's own defaults: every switch off."""
    plain = Flags(
        anomaly_mode=False, deterministic=False, cudnn_benchmark=False, user_profiler=False,
        user_trace="", autocast_dtype="", compiled=False,
    )  # fmt: skip
    return replace(plain, **changes)


def device_holds(allocated: int) -> DeviceMemory:
    """A peak of ``allocated`` bytes of 80 GB, and nothing else is cached."""
    return DeviceMemory(
        peak_allocated_bytes=allocated, peak_reserved_bytes=allocated, capacity_bytes=80 * GB
    )


def threads(intra_op: int, **changes: Any) -> Threads:
    plain = Threads(intra_op=intra_op, inter_op=4, worker_intra_op=None, omp_num_threads="")
    return replace(plain, **changes)


def copy(**changes: Any) -> Copy:
    """One pageable copy of a 38.5 MB batch per step."""
    plain = Copy(
        direction="h2d", memory="pageable", count=1.0, bytes=38.5 * MB, device_ns=8.0 * MS,
        exposed_ns=8.0 * MS, host_blocked_ns=8.2 * MS, at=at(60),
    )  # fmt: skip
    return replace(plain, **changes)


def sync(**changes: Any) -> Sync:
    """``loss.item()`` once a step, after which the device idles for 4 ms."""
    plain = Sync(name="aten::item", count=1.0, host_ns=20.0 * MS, idle_after_ns=4.0 * MS, at=at(70))
    return replace(plain, **changes)


def device_time(step_ms: float, **changes: Any) -> DeviceTime:
    plain = DeviceTime(
        step_ns=step_ms * MS, components_ns={}, busy_frac=1.0,
        kernels_per_step=300.0, mean_kernel_ns=step_ms * MS / 300, launch_starved_ns=0.0, streams=1,
    )  # fmt: skip
    return replace(plain, **changes)


def kernels(*families: KernelFamily) -> Kernels:
    return Kernels(
        families=families,
        count=sum(x.count for x in families),
        device_ns=sum(x.device_ns for x in families),
    )


def family(name: str, device_ms: float, **changes: Any) -> KernelFamily:
    """Fifty kernels of one family per step."""
    plain = KernelFamily(
        family=name, count=50.0, device_ns=device_ms * MS, float32_ns=0.0, tensor_core_ns=None
    )
    return replace(plain, **changes)


def host_ops(*ops: HostOp) -> HostOps:
    total = sum(op.count for op in ops)
    return HostOps(per_step=total, total_per_step=total, ops=ops, backward_of={})


def host_op(name: str, count: float, total_ns: float) -> HostOp:
    return HostOp(name=name, count=count, self_ns=total_ns, total_ns=total_ns)


def traced_fetches(**changes: Any) -> TracedFetches:
    """A batch a step, made in 61 ms by the training process, which spends 50 in Pillow."""
    part = FetchPart(name="resize (PIL/Image.py)", ns=50.0 * MS, at=at(29))
    plain = TracedFetches(workers=False, count=1.0, wall_ns=61.0 * MS, parts=(part,))
    return replace(plain, **changes)


def allocator_calls(**changes: Any) -> AllocatorCalls:
    """Every tensor of the step is allocated and freed: 300 times each."""
    plain = AllocatorCalls(mallocs=300.0, frees=300.0, retries=0.0, host_ns=40.0 * MS)
    return replace(plain, **changes)


def traced(step_ms: float) -> TracedSteps:
    ns = round(step_ms * MS)
    return TracedSteps(durations_ns=(ns,) * 5, mean_ns=ns, count=5, found_by="ProfilerStep")


def matrix_op(name: str, *dims: tuple[int, ...], **changes: Any) -> MatrixOp:
    """Twelve products of operands of these sizes a step, in bfloat16."""
    narrow = ("c10::BFloat16",) * len(dims)
    plain = MatrixOp(
        name=name, dims=dims, dtypes=narrow, count=12.0, host_ns=0.3 * MS, device_ns=MS
    )
    return replace(plain, **changes)


def roofline(best_ms: float) -> tuple[Roof, Work]:
    """A machine's rates, and products whose arithmetic takes this long at them."""
    roof = Roof(
        flops_per_s={"float32": 1e9}, bytes_per_s=((1 << 30, 1e10),), source="measured",
        op_ns=1500, threads=2,
    )  # fmt: skip
    product = OpWork(
        name="aten::mm", dims=((512, 512), (512, 512)), dtype="float32", count=24.0,
        flops=best_ms * 1e6, moved=3e6, host_ns=best_ms * MS, device_ns=None,
    )  # fmt: skip
    return roof, Work(ops=(product,), calls=60.0)


def optimizers(name: str, **config: float | int | bool | str | None) -> Optimizers:
    """One optimizer of torch with 60 tensors."""
    one = Optimizer(name=name, created_at=at(45), tensors=60, config={"lr": 0.01, **config})
    return Optimizers(optimizers=(one,))


def environment(**changes: Any) -> Environment:
    plain = Environment(
        torch="2.13.0+cpu", python="3.11.9", device="cpu", device_count=0, tdiag="0.1.0",
        command=("train.py",), script="/home/me/train.py", hostname="host", platform="linux",
    )  # fmt: skip
    return replace(plain, **changes)


def module(name: str, line: int = 10, **changes: Any) -> Module:
    plain = Module(
        name=name, at=at(line, "forward"), parameters=1000, parameter_bytes=4000, is_loss=False,
        calls_per_step=1.0,
    )  # fmt: skip
    return replace(plain, **changes)


def rank_time(rank: int, communication_ms: float | None, /, **components_ms: float) -> RankTime:
    """A rank whose step is made of these components, in ms."""
    parts = {name: ms * MS for name, ms in components_ms.items()}
    waits = None if communication_ms is None else communication_ms * MS
    step = sum(parts.values())
    return RankTime(rank=rank, step_ns=step, components_ns=parts, communication_ns=waits)


def ranks_of(*ranks: RankTime) -> Ranks:
    """The rank that communicates least, and how much longer the median of the others does."""
    known = sorted((r.communication_ns, r.rank) for r in ranks if r.communication_ns is not None)
    if len(known) < 2:
        return Ranks(ranks=ranks, slowest=None, waited_ns=None)
    waited = statistics.median(ns for ns, _ in known[1:]) - known[0][0]
    return Ranks(ranks=ranks, slowest=known[0][1], waited_ns=waited)


def changing_late_rank(shortest_ms: float, changing_ms: float) -> Ranks:
    """Two ranks, neither of which is late in all steps."""
    exposed = shortest_ms + changing_ms
    two = (rank_time(n, exposed, compute=100 - exposed, comm=exposed) for n in range(2))
    return replace(ranks_of(*two), shortest_ns=shortest_ms * MS, changing_ns=changing_ms * MS)


def ddp_settings(**changes: Any) -> Ddp:
    """DDP's defaults for a model of 100 MB; gradients are reduced once per step."""
    plain = Ddp(
        find_unused_parameters=False,
        static_graph=False,
        gradient_as_bucket_view=False,
        bucket_bytes=25 << 20,
        comm_hook="",
        parameter_bytes=100 * MB,
        unused_parameters=0,
        buffer_bytes=0,
        constant_buffer_bytes=0,
        backwards=1.0,
        synced=1.0,
    )
    return replace(plain, **changes)
