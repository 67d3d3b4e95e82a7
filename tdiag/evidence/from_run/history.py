"""The whole run: every step, and what the machine was used for between any two samples."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path

from tdiag.evidence.from_run.clean import Clean
from tdiag.evidence.from_run.events import Process
from tdiag.evidence.from_run.records import IteratorRecord
from tdiag.evidence.from_run.system import Machine, Sample, read_system
from tdiag.evidence.history import History, StepHistory, Strip

Values = tuple[float | None, ...]

CPU_NS, READ_BYTES = 0, 2  # which of a process's counters in a sample


def make_history(path: Path, cpus_allowed: int | None) -> History | None:
    """None without two samples. ``cpus_allowed``: the training process's own affinity."""
    machine, samples = read_system(path)
    samples = [s for i, s in enumerate(samples) if i == 0 or s.t > samples[i - 1].t]
    if machine is None or len(samples) < 2:
        return None
    return History(
        t_ns=tuple(sample.t for sample in samples),
        strips=(*_host(machine, samples, cpus_allowed), *_gpus(machine, samples)),
        no_gpu="" if machine.gpus else machine.gpus_missing or "no GPU was found",
    )


def make_step_history(
    lead: Process, durations: Sequence[int], clean: Clean | None, loaders: Mapping[int, str]
) -> StepHistory:
    """``loaders``: loader id → ``train`` or ``eval``; one that is not in it begins no epoch."""
    return StepHistory(
        end_ns=tuple(step.t for step in lead.steps),
        durations_ns=tuple(durations),
        windows=tuple(step.w for step in lead.steps),
        clean=tuple(clean.mask.tolist()) if clean else (False,) * len(lead.steps),
        epochs_ns=tuple(
            it.t for it in lead.all(IteratorRecord) if loaders.get(it.loader) == "train"
        ),
    )


def _host(machine: Machine, samples: Sequence[Sample], cpus_allowed: int | None) -> Iterator[Strip]:
    wall = [b.t - a.t for a, b in pairwise(samples)]
    busy = [b.busy_ns - a.busy_ns for a, b in pairwise(samples)]
    allowed = min(machine.cores_allowed, cpus_allowed or machine.cores_allowed)
    used = _rates(_increases(samples, CPU_NS), wall)
    yield Strip(name="cores", unit="cores", values=used, limit=allowed)
    everybody = _rates(busy, wall)
    limit = machine.cores_machine
    yield Strip(name="cores, everybody", unit="cores", values=everybody, limit=limit)
    read = _rates(_increases(samples, READ_BYTES), [ns / 1e9 for ns in wall])
    yield Strip(name="disk read", unit="bytes_per_s", values=read)
    resident = tuple(sum(p[1] for p in s.procs.values()) for s in samples[1:])
    yield Strip(name="memory", unit="bytes", values=resident, limit=machine.ram())


def _increases(samples: Sequence[Sample], counter: int) -> list[int | None]:
    """What all processes together added to a counter in each interval. One that is new began at
    zero; what one that ended added since the sample before is lost."""
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
    """Use and memory of every GPU that was used; of the first where none was."""
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
