"""Evidence about a process watched from outside (`tdiag attach`)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np

from tdiag.evidence.from_run.activities import TRAINING, Activities
from tdiag.evidence.from_run.machine_samples import make_system, mean_device_use, read_system
from tdiag.evidence.from_run.setting import make_environment
from tdiag.evidence.from_run.stack_files import (
    Speedscope,
    Stack,
    read_stacks_file,
    sampler_of,
    samples_of,
    thread_of,
)
from tdiag.evidence.from_run.stack_samples import (
    Samples,
    make_call_trees,
    make_stacks,
    not_pythons,
    with_autograd,
)
from tdiag.evidence.machine import System
from tdiag.evidence.sampled import CallTrees, Stacks
from tdiag.evidence.steps import Steps
from tdiag.evidence.store import Evidence
from tdiag.model.notes import Captured
from tdiag.model.place import Place
from tdiag.model.watched import Activity, Fetching, Watched, WatchedRank
from tdiag.probe.wire import SAMPLE, STANDARD, is_user_file, stacks_file

NO_STEPS = "tdiag attach sees no steps: the probe was not in the process when it started"
PARTS = 10  # parts of the window; their differences give a share's error (batch means)


class _Threads(msgspec.Struct):
    """A row of ``threads`` in run.json."""

    pid: int
    wall_ns: int
    cpu_ns: int
    queued_ns: int
    process_ns: int
    read_bytes: int | None
    samples: int
    disk: int


class _Attached(msgspec.Struct):
    """``attached`` in run.json (docs/run-directory.md)."""

    root: int
    ranks: list[tuple[int, int | None]]
    device: bool = False
    cores_allowed: float = 1.0
    started_unix_ns: int = 0
    parents: dict[str, int] = {}
    alone_ns: tuple[int, int] = (0, 0)
    seconds: float = 0.0
    threads: list[_Threads] = []


class _Trained(NamedTuple):
    """``stacks``: in order of time; ``others``: stacks of the process's other threads."""

    pid: int
    rank: int | None
    stacks: list[Stack]
    others: list[Stack]
    activities: Activities
    names: list[str]  # the activity of each stack


def add_watched(
    evidence: Evidence, run_dir: Path, run: Mapping[str, Any], attached: Mapping[str, Any]
) -> None:
    """Add Environment, System, Stacks, CallTrees and Watched, if they were recorded, and the
    reasons why the rest is missing.

    The judged process is the one that the others wait for: it has the smallest share of backward
    and communication, in which processes that train together wait for each other.
    """
    about = msgspec.convert(attached, _Attached)
    environment = msgspec.structs.replace(
        make_environment(run, None),
        torch=str(run.get("torch_version") or ""),
        device=_device_name(run_dir / "system.jsonl") if about.device else "cpu",
    )
    evidence.add(environment)
    evidence.otherwise = evidence.missing[Steps] = NO_STEPS
    evidence.capture = {name: Captured("not requested") for name in STANDARD}
    states = {row.pid: row for row in about.threads}
    file = read_stacks_file(run_dir / stacks_file(about.root))
    trained = _trained(file, about) if file else []
    judged = min(trained, key=_meeting, default=None)
    pid = judged.pid if judged else about.ranks[0][0]
    main = states.get(pid)
    queued = main.queued_ns / main.wall_ns if main and main.wall_ns else None
    path, spans = run_dir / "system.jsonl", (about.alone_ns,)
    evidence.add(*make_system(path, spans, about.cores_allowed, queued))
    seen = evidence.get(System) is not None
    evidence.capture["system"] = Captured("captured") if seen else Captured("failed", "no samples")
    if file is None or judged is None:
        why = "no stack was sampled"
        if file and any(_is_worker(list(samples_of(file, p))) for p in file.profiles):
            parent = about.parents.get(str(pid), "")
            why = f"process {pid} is a DataLoader worker; watch its parent, process {parent}"
        evidence.capture[SAMPLE] = Captured("failed", why)
        evidence.missing[Stacks] = evidence.missing[CallTrees] = why
        evidence.add(Watched(pid=pid, seconds=about.seconds, samples=0, activities=()))
        return
    evidence.capture[SAMPLE] = Captured("captured")
    fetches = _fetches(file, judged, about)
    stacks = with_autograd(judged.stacks, judged.others)
    samples = Samples(sampler_of(file), stacks, fetches.fetching)
    evidence.add(make_stacks(samples, 0.0), make_call_trees(samples))
    device_used = mean_device_use(path, spans) if about.device else None
    many = len(trained) > 1
    if many:
        named = judged.rank is not None
        rank, size = (judged.rank or 0, len(trained)) if named else (0, 1)
        evidence.add(msgspec.structs.replace(environment, rank=rank, world_size=size))
    forward = [i for i, name in enumerate(judged.names) if name == "forward"]
    own = sum(judged.activities.own_line(judged.stacks[i][0]) for i in forward)
    evidence.add(
        Watched(
            pid=pid,
            seconds=about.seconds,
            samples=len(judged.stacks),
            activities=_shares(judged),
            fetching=fetches.made(states, judged),
            device=about.device,
            device_used_frac=device_used,
            own_lines_frac=own / len(judged.names) if judged.names else 0.0,
            other_threads_cores=_other_threads(main),
            ranks=tuple(_rank(one, states) for one in trained) if many else (),
        )
    )


def _device_name(path: Path) -> str:
    machine, _ = read_system(path)
    names = [gpu.name for gpu in (machine.gpus if machine else None) or () if gpu.name]
    return names[0] if names else "a GPU"


def _trained(file: Speedscope, about: _Attached) -> list[_Trained]:
    """The training processes, by their stacks; workers and launchers are left out. If none of them
    trains, the processes that were asked for."""
    ranks = dict(about.ranks)
    threads: dict[int, dict[int, list[Stack]]] = {}
    for profile in file.profiles:
        pid, tid = thread_of(profile.name)
        if pid is not None and tid is not None:
            threads.setdefault(pid, {})[tid] = list(samples_of(file, profile))
    found = [
        one
        for pid, stacks in threads.items()
        if not _is_worker(stacks.get(pid, [])) and (one := _process(pid, stacks, about))
    ]
    training = [one for one in found if set(one.names) & set(TRAINING)]
    chosen = training or [one for one in found if one.pid in ranks]
    if set(ranks) & {one.pid for one in chosen}:  # a child may evaluate or compile
        chosen = [one for one in chosen if one.pid in ranks]
    return sorted(chosen, key=lambda one: (one.rank is None, one.rank or 0, one.pid))


def _process(pid: int, threads: Mapping[int, list[Stack]], about: _Attached) -> _Trained | None:
    """The process with its training thread, most often the main thread."""
    every = [stack for stacks in threads.values() for stack in stacks]
    activities = Activities(every, about.device, about.started_unix_ns)
    named = {t: [activities.of(frames) for frames, _ in stacks] for t, stacks in threads.items()}
    mine = {pid} & set(threads)
    mine |= {t for t, stacks in threads.items() if any(not not_pythons(f) for f, _ in stacks)}
    if not mine:
        return None
    tid = max(mine, key=lambda t: (sum(name in TRAINING for name in named[t]), t == pid, -t))
    others = [stack for t, stacks in threads.items() if t != tid for stack in stacks]
    apart = [stack for stack in others if not_pythons(stack[0])]
    rank = dict(about.ranks).get(pid)
    return _Trained(pid, rank, threads[tid], apart, activities, named[tid])


def _is_worker(stacks: Sequence[Stack]) -> bool:
    return any(frame.is_workers() for frames, _ in stacks for frame in frames)


def _meeting(one: _Trained) -> float:
    return sum(name in ("backward", "comm") for name in one.names) / max(1, len(one.names))


def _shares(one: _Trained) -> tuple[Activity, ...]:
    """Shares of the training thread's samples, largest first."""
    counts = Counter(one.names)
    total = len(one.names)
    lines: dict[str, Counter[Place]] = {}
    for name, (frames, _) in zip(one.names, one.stacks, strict=True):
        if at := users_line(frames):
            lines.setdefault(name, Counter())[at] += 1
    return tuple(
        Activity(
            name=name,
            frac=count / total,
            error_frac=_error([n == name for n in one.names]),
            at=most[0] if (most := next(iter(lines.get(name, Counter()).most_common(1)), None))
            else None,
            at_frac=most[1] / total if most else 0.0,
        )
        for name, count in counts.most_common()
    )  # fmt: skip


def users_line(frames: Sequence[Any]) -> Place | None:
    """The user's innermost line."""
    inner = next(
        (f for f in reversed(frames) if is_user_file(f.file or "") and not f.tdiags()), None
    )
    return inner and Place(file=inner.file or "", line=inner.line or 0, function=inner.name)


def _error(is_it: Sequence[bool]) -> float:
    """Standard error of a share, by batch means: samples close in time are similar, so the share
    varies more than that of independent samples. If some part has no sample, the largest possible
    error."""
    if len(is_it) < PARTS:
        return 0.5
    means = [float(np.mean(part)) for part in np.array_split(np.asarray(is_it), PARTS)]
    return float(np.std(means, ddof=1) / np.sqrt(PARTS))


class _Fetches(NamedTuple):
    """``pids``: the workers; ``fetching``: number of their stacks in a fetch; ``total``: of all
    their stacks. Without workers: the training thread's."""

    pids: list[int]
    fetching: list[Stack]
    total: int

    def made(self, states: Mapping[int, _Threads], judged: _Trained) -> Fetching | None:
        rows = [states[p] for p in self.pids or [judged.pid] if p in states and states[p].wall_ns]
        stacks = self.fetching
        if not self.pids:
            stacks = [s for s in judged.stacks if any(frame.fetches() for frame in s[0])]
        if not rows or not self.total:
            return None
        lines = Counter(at for frames, _ in stacks if (at := users_line(frames)))
        most = lines.most_common(1)[0] if lines else None
        read = [row.read_bytes for row in rows if row.read_bytes is not None]
        return Fetching(
            workers=len(self.pids),
            fetch_frac=len(stacks) / self.total,
            cpu_frac=_mean(row.cpu_ns / row.wall_ns for row in rows),
            queued_frac=_mean(row.queued_ns / row.wall_ns for row in rows),
            disk_frac=_mean(row.disk / row.samples for row in rows),
            read_bytes_per_s=sum(read) / max(row.wall_ns for row in rows) * 1e9 if read else None,
            at=most[0] if most else None,
            at_frac=most[1] / len(stacks) if most else 0.0,
        )


def _fetches(file: Speedscope, judged: _Trained, about: _Attached) -> _Fetches:
    """The fetches of the judged process's own workers; in an old record without parents, of all."""
    pids: list[int] = []
    fetching: list[Stack] = []
    total = 0
    for profile in file.profiles:
        pid, tid = thread_of(profile.name)
        if pid is None or tid != pid or about.parents.get(str(pid), judged.pid) != judged.pid:
            continue
        stacks = list(samples_of(file, profile))
        if pid != judged.pid and _is_worker(stacks):
            pids.append(pid)
            total += len(stacks)
            fetching += (s for s in stacks if any(frame.fetches() for frame in s[0]))
    return _Fetches(pids, fetching, total if pids else len(judged.stacks))


def _rank(one: _Trained, states: Mapping[int, _Threads]) -> WatchedRank:
    row = states.get(one.pid)
    return WatchedRank(
        pid=one.pid,
        rank=one.rank,
        samples=len(one.stacks),
        cpu_frac=row.cpu_ns / row.wall_ns if row and row.wall_ns else None,
        activities=_shares(one),
    )


def _other_threads(main: _Threads | None) -> float | None:
    """Cores used by the judged process apart from its main thread."""
    if main is None or not main.wall_ns:
        return None
    return max(0.0, (main.process_ns - main.cpu_ns) / main.wall_ns)


def _mean(values: Iterable[float]) -> float:
    return float(np.mean(list(values)))
