"""Sampled stacks (speedscope files): shares by the user's own line, and call trees."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, TypeAlias

from tdiag.evidence.from_run.clean import busy_threads
from tdiag.evidence.from_run.event_files import Process, workers_of
from tdiag.evidence.from_run.sampled_frames import (
    SampledFrame,
    package_of,
    phase_shown,
    runs_framework,
)
from tdiag.evidence.from_run.stack_files import (
    Speedscope,
    Stack,
    read_stacks_file,
    sampler_of,
    samples_of,
    thread_of,
)
from tdiag.evidence.sampled import (
    NOT_LOGGING,
    WRITERS,
    CallFrame,
    CallTrees,
    LateStacks,
    StackLine,
    Stacks,
)
from tdiag.frameworks import is_framework
from tdiag.model.place import Place
from tdiag.model.threshold import MAJORITY_FRAC, Threshold
from tdiag.probe.wire import (
    ENDED,
    is_user_file,
    late_stacks_file,
    stacks_file,
)

ONE_PHASE_FRAC = Threshold(
    0.9,
    "of a line's samples",
    "Heuristic: a line with fewer in one phase may be a helper that several phases share.",
)

# What a thread is in while it waits for another one.
_WAITS = ("/threading.py", "/queue.py", "/concurrent/futures/_base.py")


class Samples(NamedTuple):
    """``training``: stacks of the training thread; ``fetching``: of its workers, from the fetch on;
    ``beside``: of other Python threads in the training process, while they work, weighted by their
    CPU time; ``others``: all of theirs that are in the user's code. ``source``: the sampler."""

    source: str
    training: list[Stack]
    fetching: list[Stack]
    beside: Sequence[Stack] = ()
    others: Sequence[Stack] = ()


def find_samples(
    run_dir: Path, lead: Process, judged: Process, processes: list[Process]
) -> Samples | None:
    """The sampled stacks of ``judged``, from the pass with most of them, or None. ``lead``: the
    rank that requested them.

    A file that is not a speedscope profile (py-spy was killed while writing) is left out.
    """
    found = [samples_in(file, judged, processes) for file in read_stacks(run_dir, lead)]
    if judged.pid != lead.pid:
        found = [samples for samples in found if samples.training]
    return max(found, key=lambda s: len(s.training), default=None)


def make_late_stacks(
    run_dir: Path, lead: Process, judged: Process, processes: list[Process]
) -> LateStacks | None:
    """Stacks of the last samples after the windows; None if there are none of ``judged``."""
    paths = run_dir.glob(late_stacks_file(lead.pid, "*"))
    newest = max(paths, key=lambda path: path.stat().st_mtime, default=None)
    file = newest and read_stacks_file(newest)
    samples = samples_in(file, judged, processes) if file else None
    if samples is None or not samples.training:
        return None
    return LateStacks(stacks=make_stacks(samples, 0.0), trees=make_call_trees(samples))


def read_stacks(run_dir: Path, lead: Process) -> list[Speedscope]:
    """The stack files that ``lead`` requested, except those that are not speedscope profiles."""
    files = [read_stacks_file(p) for p in sorted(run_dir.glob(stacks_file(f"{lead.pid}*")))]
    return [file for file in files if file is not None]


def make_stacks(samples: Samples, slowed: float) -> Stacks:
    """The samples by the user's lines; ``slowed``: by how much sampling made steps longer."""
    return Stacks(
        source=samples.source,
        samples=len(samples.training),
        training=_lines(samples.training),
        workers=_lines(samples.fetching),
        worker_samples=len(samples.fetching),
        beside=_lines(samples.beside),
        others=_lines(samples.others),
        slowed_frac=max(0.0, slowed),
        probe_frac=_in_probe(samples.training),
    )


def _in_probe(stacks: Sequence[Stack]) -> float:
    total = sum(weight for _, weight in stacks)
    inside = sum(weight for frames, weight in stacks if frames and frames[-1].works_for_tdiag())
    return inside / total if total else 0.0


def samples_in(file: Speedscope, lead: Process, processes: list[Process]) -> Samples:
    """The file's samples of ``lead`` and its workers."""
    workers, busy = workers_of(lead, processes), busy_threads(lead)
    training: list[Stack] = []
    autograd: list[Stack] = []
    others: list[Stack] = []
    working: list[Stack] = []
    fetching: list[Stack] = []
    for profile in file.profiles:
        pid, tid = thread_of(profile.name)
        if pid in (lead.pid, None) and (tid == lead.tid or (tid is None and not training)):
            training += samples_of(file, profile)
        elif pid == lead.pid:
            # One that sleeps is sampled as often as one that works: CPU time is the weight.
            cores = 1.0 if busy is None or tid is None else busy.get(tid, busy.get(ENDED, 0.0))
            for frames, weight in samples_of(file, profile):
                if not_pythons(frames):
                    autograd.append((frames, weight))
                else:
                    others.append((frames, weight))
                    working.append((frames, weight * cores))
        elif pid in workers and tid == workers[pid][0].tid:
            fetching += _fetches(samples_of(file, profile))
    working = [stack for stack in working if stack[1] and _works(stack[0])]
    others = [stack for stack in others if _users(stack[0])]
    return Samples(sampler_of(file), with_autograd(training, autograd), fetching, working, others)


def _works(stack: Sequence[SampledFrame]) -> bool:
    """It runs the user's code, and does not wait for another thread."""
    inner = next((frame for frame in reversed(stack) if not frame.tdiags()), None)
    waits = inner is None or (inner.file or "").endswith(_WAITS)
    return not waits and _users(stack)


def _users(stack: Sequence[SampledFrame]) -> bool:
    return any(is_user_file(frame.file or "") for frame in stack)


def _fetches(stacks: Iterable[Stack]) -> Iterator[Stack]:
    """The stacks that fetch, from the fetch on: in a forked worker, the frames above are its
    parent's, at the line that started the workers."""
    for frames, weight in stacks:
        first = next((i for i, frame in enumerate(frames) if frame.fetches()), None)
        if first is not None:
            yield frames[first:], weight


def not_pythons(stack: Sequence[SampledFrame]) -> bool:
    """Whether Python did not start this stack's thread (such as autograd's thread for a device)."""
    outermost = next((frame for frame in stack if not frame.tdiags()), None)
    if outermost is None or outermost.name == "<module>":  # the main thread
        return False
    return not (outermost.file or "").endswith("threading.py")


def with_autograd(training: list[Stack], autograd: list[Stack]) -> list[Stack]:
    """The training thread's stacks; while it waits in backward, what autograd's threads do.

    py-spy records no moments and does not show which of several backward calls a thread worked for.
    So the samples of these threads replace the same weight of samples that end in torch's backward,
    in equal parts; their time counts once.
    """
    waiting = [stack for stack in training if _waits_for_backward(stack[0])]
    waited = sum(weight for _, weight in waiting)
    apart = sum(weight for _, weight in autograd)
    if not waited or not apart:
        return training
    taken = min(1.0, apart / waited)
    places: Counter[tuple[int, ...]] = Counter()  # by identity, because stacks share their frames
    for frames, weight in waiting:
        places[tuple(map(id, frames))] += weight  # type: ignore[assignment]
    most = places.most_common(1)[0][0]
    outer = next(frames for frames, _ in waiting if tuple(map(id, frames)) == most)
    return [
        *(stack for stack in training if not _waits_for_backward(stack[0])),
        *((frames, weight * (1 - taken)) for frames, weight in waiting if taken < 1),
        *(([*outer, *frames], weight * taken * waited / apart) for frames, weight in autograd),
    ]


def _waits_for_backward(stack: Sequence[SampledFrame]) -> bool:
    """Whether it ends in torch's engine: backward called neither the user's Python nor a hook."""
    inner = next((frame for frame in reversed(stack) if not frame.tdiags()), None)
    return inner is not None and (
        inner.phase() == "backward" or (inner.file or "").endswith("torch/autograd/graph.py")
    )


_Line: TypeAlias = tuple[str, int]  # file, line


def _lines(stacks: Sequence[Stack]) -> tuple[StackLine, ...]:
    """Shares by innermost user line, largest first. Denominator: all given samples. Samples that
    end in the probe's own functions belong to no line: a thread that lost its core often gets it
    back where a hook reads a clock, which is a system call. A comprehension or lambda has its own
    frame on a line that its function also runs: the line counts once."""
    total = sum(weight for _, weight in stacks)
    weight_of: dict[_Line, float] = defaultdict(float)
    own: dict[_Line, float] = defaultdict(float)
    elsewhere: dict[_Line, float] = defaultdict(float)
    names: dict[_Line, Counter[str]] = defaultdict(Counter)
    leaves: dict[_Line, Counter[str]] = defaultdict(Counter)
    phases: dict[_Line, Counter[str]] = defaultdict(Counter)
    libraries: dict[_Line, Counter[str]] = defaultdict(Counter)
    framework: dict[_Line, float] = defaultdict(float)
    evaluating: dict[_Line, float] = defaultdict(float)
    logging: dict[_Line, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    for stack, weight in stacks:
        mine = [i for i, frame in enumerate(stack) if is_user_file(frame.file or "")]
        if not mine or stack[-1].works_for_tdiag():
            continue
        inner, called = stack[mine[-1]], stack[mine[-1] + 1 : mine[-1] + 2]
        at = (inner.file or "", inner.line or 0)
        weight_of[at] += weight
        names[at][inner.name] += 1
        own[at] += weight if not called else 0.0
        elsewhere[at] += weight if called and not _in_torch(stack[mine[-1] + 1 :]) else 0.0
        leaf = _leaf(next(f for f in reversed(stack) if not f.tdiags()))
        phase = phase_shown(stack)
        leaves[at][leaf] += 1
        libraries[at][_library(called)] += 1
        phases[at][phase] += 1
        if any(map(SampledFrame.evaluates, stack)):
            evaluating[at] += weight / total
        part = next(filter(None, map(SampledFrame.logging_part, stack[mine[-1] + 1 :])), "")
        if phase not in NOT_LOGGING and (part or WRITERS.search(leaf)):
            logging[at][part] += weight / total
        elif not phase and runs_framework(stack[mine[-1] + 1 :]):
            framework[at] += weight / total
    lines = (
        StackLine(
            at=Place(file=at[0], line=at[1], function=names[at].most_common(1)[0][0]),
            self_frac=weight / total if total else 0.0,
            own_frac=own[at] / total if total else 0.0,
            elsewhere_frac=elsewhere[at] / total if total else 0.0,
            leaf=leaves[at].most_common(1)[0][0],
            phase=_one_phase(phases[at]),
            library=_most(libraries[at]),
            logging=tuple(logging[at].items()),
            framework=framework[at],
            evaluating=evaluating[at],
        )
        for at, weight in weight_of.items()
    )
    return tuple(sorted(lines, key=lambda line: -line.self_frac))


def _leaf(frame: SampledFrame) -> str:
    """``decode (PIL/Image.py)``: the name, and the last two parts of the file."""
    parts = [part for part in (frame.file or "").split("/") if part]
    return f"{frame.name} ({'/'.join(parts[-2:])})" if parts else frame.name


def _library(called: Sequence[SampledFrame]) -> str:
    return package_of(called[0].file or "") if called else ""


def _in_torch(called: Sequence[SampledFrame]) -> bool:
    """Whether one of the frames that the user's line called is torch's, a framework's or a hook of
    tdiag's, which calls torch. Torch's walks over a tree of modules are Python and nothing else."""
    packages = [package_of(frame.file or "") for frame in called if not frame.walks()]
    hooks = any(frame.tdiags() for frame in called)
    return hooks or any(x == "torch" or is_framework(x) for x in packages)


def _most(names: Counter[str]) -> str:
    name, count = names.most_common(1)[0]
    return name if count > MAJORITY_FRAC * names.total() else ""


def _one_phase(phases: Counter[str]) -> str:
    phase, count = phases.most_common(1)[0]
    return phase if count >= ONE_PHASE_FRAC * phases.total() else ""


_Function: TypeAlias = tuple[str, str, int]  # name, file, line
_Key: TypeAlias = tuple[int, _Function]  # the caller's number, the function


def make_call_trees(samples: Samples) -> CallTrees:
    """The training thread from the user's outermost frame on, its workers from the fetch on.

    The frames above these are the interpreter's start-up. tdiag's own frames are left out.
    """
    return CallTrees(
        training=_tree([(_from_user(frames), weight) for frames, weight in samples.training]),
        workers=_tree(samples.fetching),
    )


def _from_user(frames: Sequence[SampledFrame]) -> Sequence[SampledFrame]:
    """Unchanged if no frame is the user's (a library's own thread trains)."""
    first = next((i for i, frame in enumerate(frames) if is_user_file(frame.file or "")), 0)
    return frames[first:]


def _tree(stacks: Sequence[Stack]) -> tuple[CallFrame, ...]:
    total = sum(weight for _, weight in stacks)
    if not total:
        return ()
    numbers: dict[_Key, int] = {}
    weights: list[float] = []
    known: dict[int, _Function | None] = {}  # by identity, because stacks share their frames
    for frames, weight in stacks:
        parent = -1
        for frame in frames:
            if id(frame) not in known:
                known[id(frame)] = _function(frame)
            function = known[id(frame)]
            if function is None:
                continue
            parent = numbers.setdefault((parent, function), len(numbers))
            if parent == len(weights):
                weights.append(0.0)
            weights[parent] += weight
    return tuple(
        CallFrame(
            name=name,
            file=file,
            line=line,
            parent=parent,
            frac=weights[number] / total,
            user=is_user_file(file),
            evaluates=SampledFrame(name, file).evaluates(),
            collects=SampledFrame(name, file).collects(),
        )
        for (parent, (name, file, line)), number in numbers.items()
    )


def _function(frame: SampledFrame) -> _Function | None:
    """Name, file and line; None for tdiag's own frames. All lines of a library's function count as
    one, because they would split it and help little."""
    file = frame.file or ""
    if frame.tdiags():
        return None
    return frame.name, file, (frame.line or 0) if is_user_file(file) else 0
