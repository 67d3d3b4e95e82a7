"""``system.jsonl``: how busy the machine was during the clean window."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

import msgspec

from tdiag.evidence.from_run.clean import Clean
from tdiag.evidence.kinds import System


class _Gpu(msgspec.Struct):
    index: int = 0
    memory_total: int | None = None
    util: float | None = None
    memory_used: int | None = None
    throttle: list[str] | None = None


class Machine(msgspec.Struct, tag_field="kind", tag="machine"):
    cores_machine: int
    cores_allowed: float
    ram_total: int | None = None
    ram_limit: int | None = None
    gpus: list[_Gpu] | None = None
    gpus_missing: str | None = None

    def ram(self) -> int | None:
        """Bytes that the program may use: the machine's memory or the cgroup's limit."""
        bounds = (self.ram_total, self.ram_limit)
        return min((ram for ram in bounds if ram is not None), default=None)


class Sample(msgspec.Struct, tag_field="kind", tag="sample"):
    t: int
    procs: dict[str, tuple[int, int, int | None]] = {}
    busy_ns: int = 0
    idle_ns: int = 0
    iowait_ns: int | None = None
    ram_available: int | None = None
    gpus: list[_Gpu] | None = None


_decoder: msgspec.json.Decoder[Machine | Sample] = msgspec.json.Decoder(Machine | Sample)


def make_system(
    path: Path,
    clean: Clean,
    workers: Collection[int],
    cpus_allowed: int | None,
    queued_frac: float | None,
) -> System | None:
    """The machine during the longest clean stretch, or None without a readable file.

    ``workers``: pids of the DataLoader workers. ``cpus_allowed``: the training process's own
    affinity, which may be narrower than tdiag's. ``queued_frac``: how much of the window the
    training thread waited for a core.
    """
    machine, samples = read_system(path)
    if machine is None:
        return None
    used = _Interval(samples, clean)
    memory = [rss for s in samples if (rss := sum(p[1] for p in s.procs.values()))]
    available = [s.ram_available for s in samples if s.ram_available is not None]
    gpu = _busiest_gpu(used.samples)
    return System(
        cores_allowed=min(machine.cores_allowed, cpus_allowed or machine.cores_allowed),
        cores_machine=machine.cores_machine,
        cores_used=used.cores(),
        machine_busy_cores=used.machine_cores(),
        worker_cores_used=used.cores(workers) if workers else None,
        read_bytes_per_s=used.read_rate(),
        rss_bytes=max(memory, default=None),
        ram_available_bytes=min(available, default=None),
        ram_total_bytes=machine.ram(),
        io_wait_frac=used.io_wait(),
        training_queued_frac=queued_frac,
        gpu_util_frac=_mean([g.util for g in gpu if g.util is not None]),
        gpu_memory_used_bytes=max((g.memory_used for g in gpu if g.memory_used), default=None),
        gpu_memory_total_bytes=_memory_total(machine, gpu),
        gpu_throttle=tuple(sorted({why for g in gpu for why in g.throttle or ()})),
    )


def read_system(path: Path) -> tuple[Machine | None, list[Sample]]:
    """What is whole of it, in order; no machine where there is no readable file."""
    machine: Machine | None = None
    samples: list[Sample] = []
    lines = path.read_bytes().split(b"\n") if path.is_file() else []
    for line in lines:
        try:
            record = _decoder.decode(line)
        except msgspec.DecodeError:
            continue  # a torn last line, or a kind of a newer sampler
        if isinstance(record, Machine):
            machine = record
        else:
            samples.append(record)
    return machine, samples


class _Interval:
    """Differences of the counters over the longest clean stretch.

    Between the samples inside it; where it holds fewer than two, between those around it.
    """

    def __init__(self, samples: list[Sample], clean: Clean) -> None:
        begin, end = max(clean.spans, key=lambda span: span[1] - span[0])
        inside = [s for s in samples if begin <= s.t <= end]
        if len(inside) < 2:
            before = [s for s in samples if s.t < begin][-1:]
            inside = before + inside + [s for s in samples if s.t > end][:1]
        self.samples = inside
        self.wall_ns = inside[-1].t - inside[0].t if len(inside) > 1 else 0

    def _pairs(
        self, pids: Collection[int] | None
    ) -> list[tuple[tuple[int, int, int | None], tuple[int, int, int | None]]]:
        first, last = self.samples[0].procs, self.samples[-1].procs
        wanted = [p for p in last if p in first and (pids is None or int(p) in pids)]
        return [(first[p], last[p]) for p in wanted]

    def cores(self, pids: Collection[int] | None = None) -> float | None:
        """CPU time ÷ wall time of these processes (None: of all), those that lived throughout."""
        pairs = self._pairs(pids) if self.wall_ns else []
        return sum(b[0] - a[0] for a, b in pairs) / self.wall_ns if pairs else None

    def machine_cores(self) -> float | None:
        if not self.wall_ns:
            return None
        return (self.samples[-1].busy_ns - self.samples[0].busy_ns) / self.wall_ns

    def read_rate(self) -> float | None:
        pairs = self._pairs(None) if self.wall_ns else []
        read = [b[2] - a[2] for a, b in pairs if a[2] is not None and b[2] is not None]
        return sum(read) / (self.wall_ns / 1e9) if read else None

    def io_wait(self) -> float | None:
        """Share of the machine's core time spent idle with storage requests outstanding."""
        if not self.wall_ns:
            return None
        first, last = self.samples[0], self.samples[-1]
        if first.iowait_ns is None or last.iowait_ns is None:
            return None
        waited = last.iowait_ns - first.iowait_ns
        total = last.busy_ns - first.busy_ns + last.idle_ns - first.idle_ns + waited
        return waited / total if total > 0 else None


def _busiest_gpu(samples: list[Sample]) -> list[_Gpu]:
    """The samples of the device that was used most."""
    by_index: dict[int, list[_Gpu]] = {}
    for sample in samples:
        for gpu in sample.gpus or ():
            by_index.setdefault(gpu.index, []).append(gpu)
    return max(by_index.values(), key=lambda gpus: sum(g.util or 0.0 for g in gpus), default=[])


def _memory_total(machine: Machine, gpu: list[_Gpu]) -> int | None:
    totals = {g.index: g.memory_total for g in machine.gpus or ()}
    return totals.get(gpu[0].index) if gpu else None


def _mean(values: list[float]) -> float | None:
    return sum(values) / len(values) if values else None
