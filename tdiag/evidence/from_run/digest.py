"""A digest of a machine's ranks, in its run directory: all that a comparison of ranks needs.

Reading a rank's marks and dividing its steps into phases takes 6 to 9 ms, so 6 to 9 s for a
thousand ranks; its digest has at most 32 kB. So each machine's `tdiag run` distils its own ranks at
the end (``tdiag.evidence.from_run.distil``), and whoever reads the run merges the digests. A digest
is valid as long as neither the events nor the code that reads them change: both are in the key.
"""

from __future__ import annotations

import hashlib
import os
import zlib
from collections.abc import Iterable, Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path

import msgspec
import numpy as np

from tdiag.evidence.from_run.slices import Ints
from tdiag.model.threshold import Threshold
from tdiag.probe.wire import DIGEST, events_files


class ProcessHead(msgspec.Struct, frozen=True, array_like=True):
    """What is needed of a process before its records are read. ``steps``: how many it took, from
    ``began`` to ``ended``. ``clock_ns``: the wall clock minus the monotonic one. ``intra_op``:
    torch's threads; None = unknown."""

    pid: int
    rank: int
    world_size: int
    evaluates: bool
    steps: int
    began: int
    ended: int
    clock_ns: int | None
    intra_op: int | None
    broken_lines: int


MOST_STEPS = Threshold(
    900,
    "steps in a digest",
    "By measurement (benchmarks/ranks.py): a step takes 31 to 34 bytes, so a rank's digest at most"
    " 32 kB.",
)
TOGETHER = 10  # steps in a row that are kept or left out


class RankSteps(msgspec.Struct, frozen=True, array_like=True):
    """A rank's steps: columns ``number``, ``begin``, ``end``, and the ns of each phase in
    ``names``, as compressed int64 in the machine's byte order."""

    steps: int
    names: tuple[str, ...]
    packed: bytes

    @classmethod
    def of(cls, number: Ints, begin: Ints, end: Ints, phases: Mapping[str, Ints]) -> RankSteps:
        """Of more than ``MOST_STEPS`` every second, fourth, … row of steps is kept: by the steps'
        numbers, so that all ranks keep the same."""
        left_out = 1
        while len(number) > MOST_STEPS * left_out:
            left_out *= 2
        kept = number // TOGETHER % left_out == 0
        # Differences repeat from step to step, and what repeats is compressed well.
        begin = begin[kept]
        columns = [number, end, *phases.values()]
        number, end, *spent = (column[kept] for column in columns)
        packed = np.stack([number, np.diff(begin, prepend=0), end - begin, *spent])
        return cls(len(number), tuple(phases), zlib.compress(packed.astype(np.int64).tobytes()))

    def columns(self, shift_ns: int = 0) -> tuple[Ints, Ints, Ints, dict[str, Ints]]:
        """What it was made of, its times shifted."""
        table = np.frombuffer(zlib.decompress(self.packed), np.int64).reshape(-1, self.steps)
        number, apart, duration, *phases = table
        begin = np.cumsum(apart) + shift_ns
        return number, begin, begin + duration, dict(zip(self.names, phases, strict=True))


class Sums(msgspec.Struct, frozen=True, array_like=True):
    """Of some values: how many they are, their sum, and the sum of their squares."""

    count: int = 0
    total: int = 0
    squares: int = 0

    @classmethod
    def of(cls, values: Iterable[int]) -> Sums:
        known = list(values)
        return cls(len(known), sum(known), sum(value * value for value in known))

    def __add__(self, other: Sums) -> Sums:
        return Sums(
            self.count + other.count, self.total + other.total, self.squares + other.squares
        )

    @property
    def mean(self) -> float:
        return self.total / self.count

    @property
    def variance(self) -> float:
        """Of the mean."""
        if self.count < 2:
            return 0.0
        apart = self.count * self.squares - self.total**2  # in whole numbers, so exact
        return apart / self.count**2 / (self.count - 1)


class Batches(msgspec.Struct, frozen=True, array_like=True):
    """Samples and bytes of a loader's batches."""

    samples: Sums = Sums()
    bytes: Sums = Sums()


class Distilled(msgspec.Struct, frozen=True, array_like=True):
    """One process. ``steps`` is None if it does not train; ``batches``: of its loaders, by their
    number."""

    head: ProcessHead
    steps: RankSteps | None
    batches: dict[int, Batches]


class Digest(msgspec.Struct):
    """``processes``: by the name of the events file."""

    key: str = ""
    processes: dict[str, Distilled] = {}


def read_digest(part: Path, key: str) -> Mapping[str, Distilled]:
    """By the events file's name. Empty if there is no digest with this key."""
    with suppress(OSError, msgspec.MsgspecError):
        found = msgspec.msgpack.decode((part / DIGEST).read_bytes(), type=Digest)
        if found.key == key:
            return found.processes
    return {}


def write_digest(part: Path, key: str, processes: Mapping[str, Distilled]) -> None:
    """``key``: from before the events were read. A read-only folder stays unchanged."""
    beside = part / f"{DIGEST}.{os.getpid()}"
    with suppress(OSError):
        beside.write_bytes(msgspec.msgpack.encode(Digest(key, dict(processes))))
        beside.replace(part / DIGEST)


def key_of(part: Path) -> str:
    """Name and size of every events file, which only grows, and the code that reads them. Times are
    not in it, because a copy or an upload changes them."""
    hashed = hashlib.sha256(_code())
    for file in events_files(part):
        with suppress(OSError):
            hashed.update(f"{file.name} {Path(file.path).stat().st_size}\n".encode())
    return hashed.hexdigest()


@cache
def _code() -> bytes:
    hashed = hashlib.sha256()
    package = Path(__file__).parent
    for code in sorted([*package.glob("*.py"), *package.parent.glob("*.py")]):
        hashed.update(code.read_bytes())
    return hashed.digest()
