"""Running `tdiag` as a user does: as a process, with pipes or in a terminal of its own."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
import textwrap
import time
from collections.abc import Callable
from pathlib import Path

import pyte

from tests import warm

NO_ROOF = Path(__file__).parent / "no_roof"  # a sitecustomize
TDIAG = [sys.executable, "-c", "from tdiag.cli import main; main()"]
PATIENCE_S = 60.0  # only so that a broken test ends; nothing is measured by it

# A training that is none: it writes the events that the probe would, and needs no torch.
FAKE_TRAINING = """
import json, os, time

class Events:
    def __init__(self):
        run = os.environ["TDIAG_RUN"]
        self.run, self.i, self.now = run, 0, time.perf_counter_ns()
        self.file = open(f"{run}/events/{os.getpid()}.jsonl", "a", buffering=1)
        self.write("torch", version="2.13.0", devices=[])
        self.write("role", role="training", tid=os.getpid())
        self.write("boundary", t=self.now, source="optimizer")
    def write(self, kind, **fields):
        print(json.dumps({"kind": kind, **fields}, separators=(",", ":")), file=self.file)
    def window(self, name, state="begin", number=1):
        self.write("window", t=self.now, name=name, state=state, step=self.i, **{"pass": number})
    def step(self, ns=5_310_000):
        self.now += ns
        began, end = self.now - ns, [12, self.now, 0]
        self.write("steps", i=self.i, n=1, s=began, t=self.now, w="baseline", m=end)
        self.i += 1

events = Events()
"""


def script(folder: Path, source: str, name: str = "train.py", *, training: bool = False) -> str:
    """Write a script; with ``training`` it has ``events`` to write."""
    text = textwrap.dedent(source)
    (folder / name).write_text((FAKE_TRAINING if training else "") + text)
    return name


def tdiag(
    *words: str, cwd: Path, stdin: str = "", env: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run the command to its end, in a Python that has imported tdiag already."""
    return warm.run(
        ["-m", "tdiag", *words], cwd, {**os.environ, **(env or {})},
        modules=warm.TDIAG, stdin=stdin, timeout_s=PATIENCE_S,
    )  # fmt: skip


def latest(folder: Path) -> Path:
    return (folder / ".tdiag" / "runs" / "latest").resolve()


def wait_for(condition: Callable[[], object]) -> None:
    """Until it holds; a test that waits in vain fails."""
    until = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < until, "waited in vain"
        time.sleep(0.02)


class Terminal:
    """A command in a terminal of its own, which is its controlling one; Ctrl-C works."""

    def __init__(self, command: list[str], cwd: Path, rows: int = 24, columns: int = 80) -> None:
        self.master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        self.screen = pyte.HistoryScreen(columns, rows, history=10_000, ratio=1e-9)
        self.stream = pyte.ByteStream(self.screen)
        self.raw = b""
        self.process = subprocess.Popen(
            command, cwd=cwd, stdin=slave, stdout=slave, stderr=slave, start_new_session=True,
            env={**os.environ, "TERM": "xterm-256color", "COLUMNS": ""},
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )  # fmt: skip
        os.close(slave)

    def type(self, text: str) -> None:
        os.write(self.master, text.encode())

    def interrupt(self) -> None:
        """Press Ctrl-C."""
        self.type("\x03")

    @property
    def text(self) -> str:
        """All that came over the wire so far."""
        return self.raw.decode(errors="replace")

    def read(self, until: str | None = None) -> None:
        """Read until a text has come, or to the end."""
        end = time.monotonic() + PATIENCE_S
        while until is None or until not in self.text:
            assert time.monotonic() < end, f"no {until!r} in {self.text!r}"
            if not self.read_for(0.1):
                break

    def read_for(self, seconds: float) -> bool:
        """Read what comes within this time; False once the last process has gone."""
        if select.select([self.master], [], [], seconds)[0]:
            try:
                data = os.read(self.master, 65536)
            except OSError:  # EIO
                return False
            self.raw += data
            self.stream.feed(data)
        return True

    def end(self) -> int:
        """Read to the end and give the exit code."""
        self.read()
        code = self.process.wait(PATIENCE_S)
        os.close(self.master)
        return code

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)

    def lines(self) -> list[str]:
        """What a reader sees, scrolled-off rows first, without trailing blanks."""
        rows = [
            *self.screen.history.top,
            *(self.screen.buffer[y] for y in range(self.screen.lines)),
        ]
        text = ["".join(row[x].data for x in range(self.screen.columns)).rstrip() for row in rows]
        while text and not text[-1]:
            text.pop()
        return text
