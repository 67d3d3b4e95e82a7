"""Tools that attach to a process when the probe asks through ``control/`` (docs/run-directory.md).

Tools are attached, not the program's parent, which would lose its exit code. Each request
``<prefix>-<pid>-<pass>.want`` gets one process of the tool, which runs until ``.stop`` appears or
the program ends; the file names the process to attach to, if that is another one (an ancestor).
``attached`` is answered only when the tool says that it watches, because until then a window would
record nothing.
"""

from __future__ import annotations

import contextlib
import signal
import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path

from tdiag.children import end_with_this_process
from tdiag.probe.wire import ATTACHED, CONTROL, REFUSED, STATE, STOP, WANT

# A tool writes its data in well under a second; if it takes longer, it hangs.
STOP_WITHIN_S = 10.0
# A tool stops a process for milliseconds at a time. If a process is killed during such a stop, it
# may stay stopped (py-spy 0.4: about 1 in 150), and a process that waits for its end waits until
# the tool ends.
HELD_AFTER_S = 2.0


def _before_exec() -> Callable[[], None]:
    """tdiag waits for signals with all of them blocked, and the mask survives exec. If tdiag is
    killed, its tool would watch for ever; so the tool is interrupted then and releases the
    program."""
    tie = end_with_this_process(signal.SIGINT)

    def prepare() -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, set())
        tie()

    return prepare


class Attached:
    """One process of a tool. Raises OSError if it cannot be started or its log cannot be
    written."""

    def __init__(self, command: list[str], pid: int, output: Path) -> None:
        self.pid = pid
        self.output = output
        self.last_seen = ("", 0.0)
        self.stopped_at: float | None = None
        self.log = output.with_suffix(".log")
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT,
                start_new_session=True,  # a terminal's Ctrl-C is not for the tool
                preexec_fn=_before_exec(),
            )  # fmt: skip

    def text(self) -> str:
        with contextlib.suppress(OSError):
            return self.log.read_text(errors="replace")
        return ""

    def ended(self) -> bool:
        return self.process.poll() is not None

    def holds(self) -> bool:
        """Whether the process was stopped or dead, and did not run once, for ``HELD_AFTER_S``."""
        state, now = _scheduled(self.pid), time.monotonic()
        if state != self.last_seen[0] or not state.startswith(("t", "Z")):
            self.last_seen = (state, now)
        return now - self.last_seen[1] >= HELD_AFTER_S

    def stop(self) -> None:
        """Ask for the file, which tools write on SIGINT. The second time, end a tool that hangs."""
        if self.ended():
            return
        if self.stopped_at is None:
            self.stopped_at = time.monotonic()
            self.process.send_signal(signal.SIGINT)
        elif time.monotonic() - self.stopped_at > STOP_WITHIN_S:
            self.process.kill()

    def wait(self) -> None:
        """Wait until the file is written, or the tool has proved to hang."""
        try:
            self.process.wait(STOP_WITHIN_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


class Attacher(ABC):
    """Answers the probe's requests; ``tick`` is called about twenty times a second.

    A tool defines ``name``, ``prefix`` of its requests, ``suffix`` of its output, ``absent`` (the
    message if it is not installed), ``command``, ``watching``, ``refusal``, ``final``; and
    ``second``, if another tool can take its place.
    """

    name = prefix = suffix = absent = ""

    def __init__(self, run_dir: Path, program: str | None) -> None:
        self.run_dir = run_dir
        self.control = run_dir / CONTROL
        self.program = program
        self.seen: set[str] = set()
        self.live: dict[str, Attached] = {}
        self.roots: dict[str, int] = {}  # for each request the process to attach to
        self.refusals: dict[str, str] = {}  # of the requests that the second tool tries
        self.answered: set[str] = set()

    @abstractmethod
    def command(self, program: str, pid: int, output: Path) -> list[str]:
        """The words that attach ``program`` to process ``pid`` and make it write ``output``."""

    def second(self, pid: int, output: Path) -> list[str] | None:
        """Another tool that writes the same file, where the first is absent or gives up."""
        return None

    @abstractmethod
    def watching(self, log: str) -> bool:
        """Whether the tool's log says that it watches the process."""

    @abstractmethod
    def refusal(self, log: str, code: int) -> str:
        """Why the tool gave up, in one line."""

    @abstractmethod
    def final(self, name: str) -> Path:
        """Where readers look for the output of this request."""

    def tick(self) -> None:
        """Start what was requested, answer what has become clear, stop what is over."""
        with contextlib.suppress(OSError):
            for want in self.control.glob(f"{self.prefix}-*{WANT}"):
                if want.stem not in self.seen:
                    self.seen.add(want.stem)
                    self._start(want.stem)
        for name, attached in list(self.live.items()):
            if name not in self.answered:
                self._answer_if_clear(name, attached)
            if self.live[name] is not attached:
                continue  # the second tool has just been started
            if attached.ended():
                self._keep(name)
            elif (self.control / f"{name}{STOP}").exists() or attached.holds():
                attached.stop()

    def close(self) -> None:
        """The program has ended: let each process write its file."""
        for name, attached in list(self.live.items()):
            attached.stop()
            attached.wait()
            self._keep(name)

    def _start(self, name: str) -> None:
        output = self.control / f"{name}{self.suffix}"
        try:
            pid = int(name.split("-")[1])
            root = int((self.control / f"{name}{WANT}").read_text().strip() or pid)
            self.roots[name] = root
            if self.program is None:
                self._try_second(name, pid, output, self.absent)
                return
            command = self.command(self.program, root, output)
            self.live[name] = Attached(command, pid, output)
        except (OSError, ValueError, IndexError) as error:
            self._answer(name, f"{REFUSED}cannot start {self.name}: {error}")

    def _try_second(self, name: str, pid: int, output: Path, why: str) -> None:
        """``why`` the first tool does not watch, which is the answer if the second does not
        either."""
        command = None if name in self.refusals else self.second(self.roots[name], output)
        if command is not None:
            self.refusals[name] = why
            with contextlib.suppress(OSError):
                self.live[name] = Attached(command, pid, output)
                return
        self._answer(name, f"{REFUSED}{self.refusals.get(name, why)}")

    def _answer_if_clear(self, name: str, attached: Attached) -> None:
        if self.watching(attached.text()):
            self._answer(name, ATTACHED)
        elif attached.ended():
            why = self.refusal(attached.text(), attached.process.returncode)
            self._try_second(name, attached.pid, attached.output, why)

    def _answer(self, name: str, state: str) -> None:
        self.answered.add(name)
        part = self.control / f"{name}{STATE}.part"
        with contextlib.suppress(OSError):  # without an answer the probe continues on its own
            part.write_text(state + "\n")
            part.replace(self.control / f"{name}{STATE}")

    def _keep(self, name: str) -> None:
        """Move the output to where readers look; of two passes the one with more data stays."""
        output, final = self.live.pop(name).output, self.final(name)
        with contextlib.suppress(OSError):
            if not final.exists() or output.stat().st_size >= final.stat().st_size:
                output.replace(final)


def _scheduled(pid: int) -> str:
    """The state of the process's first thread and how often it has run; empty once it is gone."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return ""
    fields = dict(line.split(":\t", 1) for line in lines if ":\t" in line)
    switches = "voluntary_ctxt_switches", "nonvoluntary_ctxt_switches"
    return " ".join([fields["State"], *(fields.get(name, "") for name in switches)])
