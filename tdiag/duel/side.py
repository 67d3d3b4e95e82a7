"""One live program that runs only in its turns.

The probe holds the training thread at a step boundary (probe/capture/turns.py); in a distributed
job, every rank's. While it is held, the whole process group is stopped by SIGSTOP, and each rank's
if a launcher gave it its own: DataLoader workers would refill their queue, and other threads would
use a core. If tdiag dies, even by SIGKILL, nothing stays behind: the kernel hangs the program up
(tdiag.children), and a stopped group that is orphaned by this gets SIGHUP and SIGCONT (POSIX,
`_exit`; hence it is its own group but not a session).
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

OUTPUT = "output.txt"  # in the run directory: the program's output
# A script that is asked to stop runs its own `finally` and `atexit` (for example a last
# checkpoint).
PATIENCE_S, HURRY_S = 10.0, 2.0  # the latter after Ctrl-C or a failure of the other side
TAIL_BYTES = 8 << 10  # of the program's output; a traceback is shorter


class ProgramEnded(Exception):
    """The program ended with exit code 0: it has no more steps."""


class BoundaryChanged(Exception):
    """A better kind of step boundary was found (for example, training began after an evaluation):
    the earlier measurements were not steps. The program is held at its first step."""


# torch's messages if a device has no memory left (of CUDA, HIP, XPU; cuBLAS for its workspace), or
# admits no second process (CUDA's compute mode EXCLUSIVE_PROCESS).
_NO_ROOM = re.compile(
    r"OutOfMemoryError|(CUDA|HIP|XPU)( error:)? out of memory|CUBLAS_STATUS_ALLOC_FAILED"
    r"|CUDA-capable device(\(s\)|s)? (is/are|are) busy or unavailable"
    r"|exclusive-thread device already in use"
)


class ProgramFailed(TdiagError):
    """The program failed. ``side``: its name. ``output``: the end of its output, usually the
    traceback. ``no_room``: the device had no memory left for it; another program may hold it."""

    def __init__(self, side: str, code: int, output: str) -> None:
        died = f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        super().__init__(f"the script itself failed ({side}: {died}): nothing was compared", output)
        self.side, self.output = side, output
        self.no_room = bool(_NO_ROOM.search(output))


@dataclass(frozen=True)
class Program:
    """The program of a side. ``variables`` are added to tdiag's own environment. ``outside``: a
    folder from which it must not import anything (:class:`Ready` lists its modules there).
    ``trial``: changes that the probe switches on in it, (name, value); None: not a trial."""

    name: str
    command: Sequence[str]
    cwd: Path
    variables: Mapping[str, str] = field(default_factory=dict)
    outside: str = ""
    trial: Sequence[tuple[str, str]] | None = None


@dataclass(frozen=True)
class Ready:
    """``start_ns``: from the start of the process to its first hold, warm-up included. ``device``:
    the device it computes on (``cuda``, …), empty for a CPU."""

    start_ns: int
    steps: int
    device: str
    outside: tuple[str, ...]


class Side:
    """A started program. Use it as a context manager: whatever happens, no process stays behind."""

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
        """Wait until it is warm and held; then it is stopped. Raises ProgramEnded, ProgramFailed,
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
        """Let it run ``steps`` steps after a first one that is left out. Returns the ns of each
        step, or on a device one number, the mean. Raises BoundaryChanged, ProgramEnded,
        ProgramFailed."""
        self._signal(signal.SIGCONT)
        self._talk.say(f"go {steps}")
        heard = self._talk.hear()
        self._signal(signal.SIGSTOP)
        if any("turn" not in message for message in heard.values()):
            raise BoundaryChanged
        return [int(ns) for ns in heard[0]["turn"]]  # rank 0's, because ranks wait for each other

    def peak_bytes(self) -> int | None:
        """The peak resident memory of the held process, of a job its first rank, in bytes; None if
        unknown."""
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
        """End the program, by force if it does not end itself."""
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
        """Signal its process group and its ranks' (torchrun makes a session for each)."""
        groups = {self.process.pid}
        for pid in self._talk.pids.values():
            with contextlib.suppress(ProcessLookupError):
                groups.add(os.getpgid(pid))
        for group in groups:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(group, number)


def spawn(program: Program, run_dir: Path) -> subprocess.Popen[bytes]:
    """Start it in its own process group, under the probe; its output goes to a file."""
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
    """A free port as a distributed job's rendezvous, because two jobs are alive at once. The second
    name is torchrun's."""
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
    """``run.json``: what ran, so that it can be read like any other run (``code``: after it
    ended)."""
    record = {"schema": rundir.SCHEMA, "command": list(program.command), "cwd": str(program.cwd),
              "exit_code": code, "hostname": platform.node(), "platform": platform.platform(),
              "tdiag": tdiag.__version__, "notes": []}  # fmt: skip
    rundir.write_json(run_dir / RUN, record)


def end(process: subprocess.Popen[bytes]) -> None:
    """Kill everything left of its group (such as a worker without a parent) and, if the group's
    first process was killed, the ranks that it started in their own sessions."""
    ranks: list[psutil.Process] = []
    if process.poll() is None:  # else the number may belong to another process by now
        with contextlib.suppress(psutil.NoSuchProcess):
            ranks = psutil.Process(process.pid).children(recursive=True)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    for rank in ranks:
        with contextlib.suppress(psutil.NoSuchProcess):
            rank.kill()
    process.wait()


def tail(run_dir: Path) -> str:
    """The end of the program's output."""
    data = (run_dir / OUTPUT).read_bytes()[-TAIL_BYTES:]
    return data.decode(errors="replace").strip()
