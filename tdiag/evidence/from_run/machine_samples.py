"""The machine: its samples over the run and during the clean window, and its storage."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from itertools import pairwise
from pathlib import Path

import msgspec

from tdiag.evidence.feeding import Storage
from tdiag.evidence.from_run.device_samples import RecordedGpu, busiest, make_device_kinds
from tdiag.evidence.machine import Busy, Strip, System, SystemHistory
from tdiag.model.kind import Kind
from tdiag.model.threshold import Threshold
from tdiag.probe.wire import CORES

SYSTEM = "system.jsonl"
BUSY_CORES = Threshold(
    0.5,
    "cores",
    "Heuristic: a thread that wants a core less than half of the time takes none from a training.",
)


class Machine(msgspec.Struct, tag_field="kind", tag="machine"):
    cores_machine: int
    cores_allowed: float
    cores_physical: int | None = None
    ram_total: int | None = None
    ram_limit: int | None = None
    gpus: list[RecordedGpu] | None = None
    gpus_missing: str | None = None

    def ram(self) -> int | None:
        """Bytes that the program may use: the machine's memory or the cgroup's limit."""
        bounds = (self.ram_total, self.ram_limit)
        return min((ram for ram in bounds if ram is not None), default=None)


class Sample(msgspec.Struct, tag_field="kind", tag="sample"):
    t: int
    procs: dict[str, tuple[int, int, int | None]] = {}
    queued: dict[str, int] = {}
    on_cpu: dict[str, int] = {}
    private: dict[str, int] = {}
    others: dict[str, tuple[int, int | None, int, str, bool | None]] = {}
    busy_ns: int = 0
    ram_available: int | None = None
    gpus: list[RecordedGpu] | None = None


_decoder: msgspec.json.Decoder[Machine | Sample] = msgspec.json.Decoder(Machine | Sample)


def make_system(
    path: Path,
    spans: Sequence[tuple[int, int]],
    cpus_allowed: float | None,
    queued_frac: float | None,
    gpu_uuid: str | None = None,
    beside: Sequence[Path] = (),
    pid: int | None = None,
) -> list[Kind]:
    """System, and what was seen of the device if one was watched, during the longest of ``spans``
    (the clean stretches: begin and end, ns on the events' clock). Empty without a readable file.

    ``cpus_allowed``: the training process's own affinity, which may be narrower than tdiag's.
    ``queued_frac``: the share of the window that the training thread waited for a core.
    ``gpu_uuid``: of the device that the process computes on, as the probe reports it.
    ``pid``: of the training process.
    ``beside``: the sample files of other ranks of the job on this machine that each have their own
    tdiag; their processes also belong to the run.
    """
    machine, samples = read_system(path)
    if machine is None:
        return []
    used = _Interval(samples, spans)
    theirs = [_Interval(read_system(path)[1], spans) for path in beside]
    mine, more = used.cores(), [cores for other in theirs if (cores := other.cores()) is not None]
    ours = {int(pid) for other in theirs for sample in other.samples for pid in sample.procs}
    memory = [rss for s in samples if (rss := sum(p[1] for p in s.procs.values()))]
    available = [s.ram_available for s in samples if s.ram_available is not None]
    system = System(
        cores_allowed=min(machine.cores_allowed, cpus_allowed or machine.cores_allowed),
        cores_machine=machine.cores_machine,
        cores_physical=machine.cores_physical,
        cores_used=None if mine is None else mine + sum(more),
        machine_busy_cores=used.machine_cores(),
        rss_bytes=max(memory, default=None),
        ram_available_bytes=min(available, default=None),
        training_queued_frac=queued_frac,
        further_core=_further_core(path.with_name(CORES)),
        others=tuple(busy for busy in used.others() if busy.pid not in ours),
    )
    looks = [sample.gpus or [] for sample in used.samples]
    own = {int(pid) for sample in used.samples for pid in sample.procs} | ours
    on_cpu = [cpu for sample in used.samples if (cpu := sample.on_cpu.get(str(pid))) is not None]
    return [system, *make_device_kinds(machine.gpus or [], looks, gpu_uuid, own, on_cpu)]


def read_system(path: Path) -> tuple[Machine | None, list[Sample]]:
    """The machine and all complete samples, in order; no machine without a readable file."""
    machine: Machine | None = None
    samples: list[Sample] = []
    lines = path.read_bytes().split(b"\n") if path.is_file() else []
    for line in lines:
        try:
            record = _decoder.decode(line)
        except msgspec.DecodeError:
            continue  # a truncated last line, or a newer sampler's kind
        if isinstance(record, Machine):
            machine = record
        else:
            samples.append(record)
    return machine, samples


def queued_fracs(path: Path, spans: Sequence[tuple[int, int]]) -> dict[int, float]:
    """pid → share of the longest span in which its main thread waited for a core, 0..1, of the
    processes that lived throughout; empty if the system does not report it."""
    used = _Interval(read_system(path)[1], spans)
    if not used.wall_ns:
        return {}
    first, last = used.samples[0].queued, used.samples[-1].queued
    return {int(pid): (last[pid] - first[pid]) / used.wall_ns for pid in last if pid in first}


def private_memory(path: Path, pids: Collection[int]) -> dict[int, list[tuple[int, int]]]:
    """pid → [(when, bytes that the process has written and shares with no other), …], in order."""
    found: dict[int, list[tuple[int, int]]] = {}
    for sample in read_system(path)[1]:
        for pid in pids:
            if (kept := sample.private.get(str(pid))) is not None:
                found.setdefault(pid, []).append((sample.t, kept))
    return found


def mean_device_use(path: Path, spans: Sequence[tuple[int, int]]) -> float | None:
    """Share of the longest span in which kernels ran on the most used device (NVML), 0..1; None if
    no device was watched."""
    _, samples = read_system(path)
    used = [
        g.util
        for g in busiest([s.gpus or [] for s in _Interval(samples, spans).samples])
        if g.util is not None
    ]
    return sum(used) / len(used) if used else None


def _further_core(path: Path) -> tuple[float, float] | None:
    """Least and most over the kinds of work that ``tdiag.sample.cores`` measured, 0..1."""
    try:
        adds = msgspec.json.decode(path.read_bytes(), type=dict[str, float]).values()
    except (OSError, msgspec.DecodeError):
        return None
    within = [min(1.0, max(0.0, share)) for share in adds]
    return (min(within), max(within)) if within else None


class _Interval:
    """Differences of the counters over the longest clean stretch.

    Between the samples inside it; if there are fewer than two, between those around it.
    """

    def __init__(self, samples: list[Sample], spans: Sequence[tuple[int, int]]) -> None:
        begin, end = max(spans, key=lambda span: span[1] - span[0])
        inside = [s for s in samples if begin <= s.t <= end]
        if len(inside) < 2:
            before = [s for s in samples if s.t < begin][-1:]
            inside = before + inside + [s for s in samples if s.t > end][:1]
        self.samples = inside
        self.wall_ns = inside[-1].t - inside[0].t if len(inside) > 1 else 0

    def cores(self) -> float | None:
        """CPU time ÷ wall time of the processes that lived throughout the interval."""
        if not self.wall_ns:
            return None
        first, last = self.samples[0].procs, self.samples[-1].procs
        used = [last[p][0] - first[p][0] for p in last if p in first]
        return sum(used) / self.wall_ns if used else None

    def others(self) -> tuple[Busy, ...]:
        """The processes outside the run that were busy throughout."""
        if not self.wall_ns:
            return ()
        first, last = self.samples[0].others, self.samples[-1].others
        found = []
        for pid, (used, wanted, threads, name, torch) in last.items():
            if pid not in first:
                continue
            cores = (used - first[pid][0]) / self.wall_ns
            before = first[pid][1]
            if wanted is not None and before is not None:
                wants = (wanted - before) / self.wall_ns
            else:
                wants = cores
            if wants >= BUSY_CORES:
                found.append(Busy(pid=int(pid), name=name, threads=threads, cores=cores,
                                  wants=wants, torch=torch))  # fmt: skip
        return tuple(sorted(found, key=lambda busy: -busy.wants))

    def machine_cores(self) -> float | None:
        if not self.wall_ns:
            return None
        return (self.samples[-1].busy_ns - self.samples[0].busy_ns) / self.wall_ns


Values = tuple[float | None, ...]

CPU_NS, READ_BYTES = 0, 2  # indices of a process's counters in a sample


def make_history(path: Path, cpus_allowed: int | None) -> SystemHistory | None:
    """The history; None with fewer than two samples. ``cpus_allowed``: the process's own
    affinity."""
    machine, samples = read_system(path)
    samples = [s for i, s in enumerate(samples) if i == 0 or s.t > samples[i - 1].t]
    if machine is None or len(samples) < 2:
        return None
    return SystemHistory(
        t_ns=tuple(sample.t for sample in samples),
        strips=(*_host(machine, samples, cpus_allowed), *_gpus(machine, samples)),
        no_gpu="" if machine.gpus else machine.gpus_missing or "no GPU was found",
    )


def _host(machine: Machine, samples: Sequence[Sample], cpus_allowed: int | None) -> Iterator[Strip]:
    wall = [b.t - a.t for a, b in pairwise(samples)]
    busy = [b.busy_ns - a.busy_ns for a, b in pairwise(samples)]
    allowed = min(machine.cores_allowed, cpus_allowed or machine.cores_allowed)
    used = _rates(_increases(samples, CPU_NS), wall)
    yield Strip(name="cores", unit="cores", values=used, limit=allowed)
    everybody = _rates(busy, wall)
    limit = machine.cores_machine
    yield Strip(name="cores, all processes", unit="cores", values=everybody, limit=limit)
    read = _rates(_increases(samples, READ_BYTES), [ns / 1e9 for ns in wall])
    yield Strip(name="disk read", unit="bytes_per_s", values=read)
    resident = tuple(sum(p[1] for p in s.procs.values()) for s in samples[1:])
    yield Strip(name="memory", unit="bytes", values=resident, limit=machine.ram())


def _increases(samples: Sequence[Sample], counter: int) -> list[int | None]:
    """How much all processes together added to a counter in each interval. A new process begins at
    zero; what an ended one added since the last sample is lost."""
    result: list[int | None] = []
    last: dict[str, int] = {}
    for sample in samples:
        now = {pid: n for pid, p in sample.procs.items() if (n := p[counter]) is not None}
        added = sum(max(0, n - last.get(pid, 0)) for pid, n in now.items())
        result.append(added if now else None)
        last |= now
    return result[1:]


def _rates(amounts: Sequence[int | None], by: Sequence[float]) -> Values:
    return tuple(None if n is None else n / x for n, x in zip(amounts, by, strict=True))


def _gpus(machine: Machine, samples: Sequence[Sample]) -> Iterator[Strip]:
    """Use and memory of every GPU that was used; of the first GPU if none was."""
    by_moment = [{g.index: g for g in sample.gpus or ()} for sample in samples[1:]]
    totals = {g.index: g.memory_total for g in machine.gpus or ()}
    used = {index for gpus in by_moment for index, g in gpus.items() if g.util}
    for index in sorted(used or list(totals)[:1]):
        seen = [gpus.get(index) for gpus in by_moment]
        util = tuple(g.util if g else None for g in seen)
        memory = tuple(g.memory_used if g else None for g in seen)
        yield Strip(name=f"GPU {index} use", unit="frac", values=util, limit=1.0)
        name = f"GPU {index} memory"
        yield Strip(name=name, unit="bytes", values=memory, limit=totals.get(index))


def read_storage(run_dir: Path) -> Storage | None:
    """The storage; None if it was not timed, or its file is damaged."""
    try:
        return msgspec.json.decode((run_dir / "storage.json").read_bytes(), type=Storage)
    except (OSError, msgspec.DecodeError):
        return None
