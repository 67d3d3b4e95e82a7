"""The stack files of samplers (speedscope JSON): their stacks, processes and threads."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

from tdiag.evidence.from_run.sampled_frames import SampledFrame
from tdiag.probe.wire import IN_PROCESS, PY_SPY, TACHYON

_THREAD = re.compile(r"[Pp]rocess (\d+).*?[Tt]hread (?:id: )?(\d+)")


class _Profile(msgspec.Struct):
    name: str = ""
    samples: list[list[int]] = []
    weights: list[float] = []


class _Shared(msgspec.Struct):
    frames: list[SampledFrame]


class Speedscope(msgspec.Struct):
    shared: _Shared
    profiles: list[_Profile]
    name: str | None = None
    exporter: str | None = None


Stack = tuple[Sequence[SampledFrame], float]  # outermost frame first; weight


def read_stacks_file(path: Path) -> Speedscope | None:
    """None if it is not a speedscope profile."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=Speedscope)
    except (OSError, msgspec.DecodeError):
        return None


def sampled_pids(file: Speedscope) -> set[int]:
    """The processes whose stacks the file contains, if it names them."""
    return {pid for profile in file.profiles if (pid := thread_of(profile.name)[0]) is not None}


def sampler_of(file: Speedscope) -> str:
    says = f"{file.name} {file.exporter}"
    return next((name for name in (IN_PROCESS, TACHYON) if name in says), PY_SPY)


def thread_of(name: str) -> tuple[int | None, int | None]:
    match = _THREAD.search(name)
    return (int(match[1]), int(match[2])) if match else (None, None)


def samples_of(file: Speedscope, profile: _Profile) -> Iterable[Stack]:
    """The samples of a thread. A comprehension is a line of the function around it."""
    frames = file.shared.frames
    inner = {i for i, frame in enumerate(frames) if frame.comprehends()}
    joined: dict[tuple[int, int], SampledFrame] = {}  # equal ones are one object: compared by id
    weights = profile.weights or [1.0] * len(profile.samples)
    for sample, weight in zip(profile.samples, weights, strict=False):
        stack: list[SampledFrame] = []
        for i in sample:
            if not 0 <= i < len(frames):
                continue
            frame = frames[i]
            if i in inner and stack and frame.file == stack[-1].file:
                around = stack.pop()
                frame = joined.setdefault(
                    (id(around), i), SampledFrame(around.name, frame.file, frame.line)
                )
            stack.append(frame)
        yield stack, weight
