"""A cache of the facts by which a job's ranks are compared, in the run directory after a first
reading.

Reading the marks of a thousand ranks and cutting them into phases takes 9 s; the compared facts of
a rank are a few kilobytes. The cache is valid as long as neither the events nor the code that reads
them change: both are in the key.
"""

from __future__ import annotations

import hashlib
import os
from contextlib import suppress
from pathlib import Path

import msgspec
import numpy as np

from tdiag.evidence.from_run.slices import Ints
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


class RankDigest(msgspec.Struct, frozen=True, array_like=True):
    """The compared facts of one rank. Its slices, about 300 kB, are not kept, because there may be
    a thousand ranks. Each clean step has an entry in ``begins``, ``ends`` and ``comms`` (ns waited
    in collectives), which are int64 in the machine's byte order."""

    wall_ns: dict[str, float]
    begins: bytes
    ends: bytes
    comms: bytes

    @classmethod
    def of(cls, wall_ns: dict[str, float], begin: Ints, end: Ints, comm: Ints) -> RankDigest:
        columns = (np.ascontiguousarray(x, np.int64).tobytes() for x in (begin, end, comm))
        return cls(wall_ns, *columns)

    @property
    def begin(self) -> Ints:
        return np.frombuffer(self.begins, np.int64)

    @property
    def end(self) -> Ints:
        return np.frombuffer(self.ends, np.int64)

    @property
    def comm(self) -> Ints:
        return np.frombuffer(self.comms, np.int64)

    @property
    def step_ns(self) -> float:
        return sum(self.wall_ns.values())


Batches = tuple[list[float], list[float]]  # samples and bytes of each training batch


class Digest(msgspec.Struct):
    """``heads``: by the name of the events file. By rank: ``compared``, None for a rank that does
    not step with the lead, and ``batches``, if a late rank was explained."""

    key: str = ""
    heads: dict[str, ProcessHead] = {}
    compared: dict[int, RankDigest | None] = {}
    batches: dict[int, Batches] = {}
    fresh: bool = False  # something was added after reading

    def write(self, run_dir: Path) -> None:
        """Write it if several ranks were compared. A read-only folder stays unchanged."""
        if not self.fresh or not self.compared:
            return
        self.fresh = False
        beside = run_dir / f"{DIGEST}.{os.getpid()}"
        with suppress(OSError):
            beside.write_bytes(msgspec.msgpack.encode(self))
            beside.replace(run_dir / DIGEST)


def read_digest(run_dir: Path) -> Digest:
    """Empty if there is none, or if it belongs to other events or other code."""
    key = _key(run_dir)
    with suppress(OSError, msgspec.MsgspecError):
        found = msgspec.msgpack.decode((run_dir / DIGEST).read_bytes(), type=Digest)
        if found.key == key:
            return found
    return Digest(key=key)


def _key(run_dir: Path) -> str:
    """Name, size and time of every events file, and the code that reads them."""
    hashed = hashlib.sha256()
    package = Path(__file__).parent
    for code in sorted([*package.glob("*.py"), *package.parent.glob("*.py")]):
        hashed.update(code.read_bytes())
    for file in events_files(run_dir):
        with suppress(OSError):
            about = Path(file.path).stat()
            hashed.update(f"{file.name} {about.st_size} {about.st_mtime_ns}\n".encode())
    return hashed.hexdigest()
