"""One live program that runs only in its turns.

The probe holds the training thread at a step boundary (probe/capture/turns.py), of a distributed
job that of every rank. Meanwhile the whole process group, and each rank's where a launcher gave it
one of its own, is stopped by SIGSTOP: DataLoader workers would refill their queue, other threads
would take a core. Should tdiag die, even of SIGKILL, nothing is left behind: the kernel
hangs the program up (tdiag.children), and a stopped group, orphaned by that, gets SIGHUP and
SIGCONT (POSIX, `_exit`; hence it is a group of its own but not a session).
"""

from __future__ import annotations

import contextlib
import os
import platform
import re
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psutil

import tdiag
from tdiag.children import end_with_this_process
from tdiag.duel.talk import Talk
from tdiag.errors import LaunchError, TdiagError
from tdiag.launch import rundir
from tdiag.launch.session import environment
from tdiag.probe.wire import CONFIG, CONTROL, OFF, RUN, TURNS

OUTPUT = "output.txt"  # in the run directory: what the program printed
# A script that is asked to stop runs its own `finally` and `atexit` (a last checkpoint, say).
PATIENCE_S, HURRY_S = 10.0, 2.0  # the latter when all is given up (Ctrl-C, the other failed)
TAIL_BYTES = 8 << 10  # of the program's output: a traceback is shorter


class ProgramEnded(Exception):
    """The program ended by itself with exit code 0: it has no more steps."""


class BoundaryChanged(Exception):
    """A better kind of step boundary was found (training began after an evaluation, say): what was
    measured until then were no steps. The program is held at the first of them."""


# What torch prints where a device has no memory left (of CUDA, HIP, XPU; cuBLAS for its workspace),
# or lets no second process in (CUDA's compute mode EXCLUSIVE_PROCESS).
_NO_ROOM = re.compile(
    r"OutOfMemoryError|(CUDA|HIP|XPU)( error:)? out of memory|CUBLAS_STATUS_ALLOC_FAILED"
    r"|CUDA-capable device(\(s\)|s)? (is/are|are) busy or unavailable"
    r"|exclusive-thread device already in use"
)


class ProgramFailed(TdiagError):
    """The program failed. ``side``: its name. ``output``: the end of what it printed, its traceback
    as a rule. ``no_room``: the device had none left for it, which another program may hold."""

    def __init__(self, side: str, code: int, output: str) -> None:
        died = f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        super().__init__(f"the script itself failed ({side}: {died}): nothing was compared", output)
        self.side, self.output = side, output
        self.no_room = bool(_NO_ROOM.search(output))


@dataclass(frozen=True)
class Program:
    """What a side runs. ``variables`` are added to tdiag's own environment. ``outside``: a folder
    of which it must not import anything (its modules there are reported in :class:`Ready`).
    ``trial``: changes that the probe switches on in it, (name, value); None: not a trial."""

    name: str
    command: Sequence[str]
    cwd: Path
    variables: Mapping[str, str] = field(default_factory=dict)
    outside: str = ""
    trial: Sequence[tuple[str, str]] | None = None


@dataclass(frozen=True)
class Ready:
    """``start_ns``: from the start of the process to its first hold, warm-up included.
    ``device``: what it computes on (``cuda``, …), empty for a CPU."""

    start_ns: int
    steps: int
    device: str
    outside: tuple[str, ...]


class Side:
    """A started program. Use as a context manager: whatever happens, nothing stays behind."""

    def __init__(self, program: Program, run_dir: Path) -> None:
        self.program = program
        self.run_dir = rundir.create(program.name, run_dir)
        config = {"plan": TURNS, "profiling": False, "steps": None, "time_budget_s": 1e9,
                  "windows": [], "sampler": OFF, "sampler_hint": "",
                  "outside": program.outside, "trial": program.trial}  # fmt: skip
        rundir.write_json(self.run_dir / CONFIG, config)
        write_record(program, self.run_dir)
        self._talk = Talk(self.run_dir / CONTROL, self._alive)
        self.began_ns = time.perf_counter_ns()
        self.process = spawn(program, self.run_dir)
        self._asked = False

    def __enter__(self) -> Side:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.close(HURRY_S if kind and not issubclass(kind, ProgramEnded) else PATIENCE_S)

    def ready(self) -> Ready:
        """Wait until it is warm and held; it is stopped then. Raises ProgramEnded, ProgramFailed,
        and UsageError for a job whose ranks cannot be held at one step."""
        message = self._talk.ready()
        self._signal(signal.SIGSTOP)
        return Ready(
            start_ns=int(message["ready"]) - self.began_ns,
            steps=int(message["step"]),
            device=str(message.get("device", "")),
            outside=tuple(message["outside"]),
        )

    def turn(self, steps: int) -> list[int]:
        """Let it run ``steps`` steps after a first one that is left out: ns of each, on a device
        one number, the mean. Raises BoundaryChanged, ProgramEnded, ProgramFailed."""
        self._signal(signal.SIGCONT)
        self._talk.say(f"go {steps}")
        heard = self._talk.hear()
        self._signal(signal.SIGSTOP)
        if any("turn" not in message for message in heard.values()):
            raise BoundaryChanged
        return [int(ns) for ns in heard[0]["turn"]]  # the others wait for it, or it for them

    def peak_bytes(self) -> int | None:
        """The most resident memory that the held process ever had, of a job its first rank; None
        where it is unknown."""
        try:
            text = Path(f"/proc/{self._talk.pids[0]}/status").read_text()
        except OSError:
            return None
        found = re.search(r"^VmHWM:\s+(\d+) kB", text, re.MULTILINE)
        return int(found[1]) << 10 if found else None

    def stop(self) -> None:
        """Ask the held program to end at its step boundary."""
        if not self._asked and self.process.poll() is None:
            self._asked = True
            self._signal(signal.SIGCONT)
            self._talk.say("stop")

    def close(self, patience_s: float = PATIENCE_S) -> None:
        """End the program, by force where it does not end itself."""
        try:
            self.stop()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(patience_s)
        finally:
            end(self.process)
            self._talk.close()

    # --- inside --------------------------------------------------------------------------------

    def _alive(self) -> None:
        code = self.process.poll()
        if code:
            raise ProgramFailed(self.program.name, code, tail(self.run_dir))
        if code == 0:
            raise ProgramEnded

    def _signal(self, number: signal.Signals) -> None:
        """To its process group and those of its ranks (torchrun makes each a session)."""
        groups = {self.process.pid}
        for pid in self._talk.pids.values():
            with contextlib.suppress(ProcessLookupError):
                groups.add(os.getpgid(pid))
        for group in groups:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(group, number)


def spawn(program: Program, run_dir: Path) -> subprocess.Popen[bytes]:
    """Start it in a process group of its own, under the probe; its output goes to a file."""
    variables = environment(run_dir, {**os.environ, **_own_port(), **program.variables})
    try:
        with (run_dir / OUTPUT).open("wb") as output:
            return subprocess.Popen(
                program.command, cwd=program.cwd, env=variables, stdin=subprocess.DEVNULL,
                stdout=output, stderr=subprocess.STDOUT, preexec_fn=_apart(),
            )  # fmt: skip
    except OSError as error:
        raise LaunchError(f"cannot start {program.command[0]}: {error.strerror}") from None


def _own_port() -> dict[str, str]:
    """A free port as the meeting point of a distributed job: two of them are alive at once. The
    second name is torchrun's own."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = str(free.getsockname()[1])
    return {"MASTER_PORT": port, "PET_MASTER_PORT": port}


def _apart() -> Callable[[], None]:
    """What the child does before it becomes the program."""
    tie = end_with_this_process(signal.SIGHUP)

    def prepare() -> None:
        os.setpgid(0, 0)
        tie()

    return prepare


def write_record(program: Program, run_dir: Path, code: int | None = None) -> None:
    """``run.json``: what ran, so that it can be read as any other run (``code``: once it ended)."""
    record = {"schema": rundir.SCHEMA, "command": list(program.command), "cwd": str(program.cwd),
              "exit_code": code, "hostname": platform.node(), "platform": platform.platform(),
              "tdiag": tdiag.__version__, "notes": []}  # fmt: skip
    rundir.write_json(run_dir / RUN, record)


def end(process: subprocess.Popen[bytes]) -> None:
    """Kill whatever of its group is still there, a worker without a parent, say, and, should it
    have been killed itself, the ranks that it started in sessions of their own."""
    ranks: list[psutil.Process] = []
    if process.poll() is None:  # else the number may be somebody else's by now
        with contextlib.suppress(psutil.NoSuchProcess):
            ranks = psutil.Process(process.pid).children(recursive=True)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    for rank in ranks:
        with contextlib.suppress(psutil.NoSuchProcess):
            rank.kill()
    process.wait()


def tail(run_dir: Path) -> str:
    """The end of what the program printed."""
    data = (run_dir / OUTPUT).read_bytes()[-TAIL_BYTES:]
    return data.decode(errors="replace").strip()
