"""TensorBoard as a child process: on loopback, on a free port; it ends with all its children."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tdiag.children import end_with_this_process, program
from tdiag.errors import LaunchError, UsageError
from tdiag.view.charts import GOOGLE_CHARTS

ADDRESS = "127.0.0.1"
TICK_S = 0.05
POINTS = (
    20_000  # of a curve; a run watched for a minute has fewer steps, unless they are very short
)
_URL = re.compile(r"http://\S+?:\d+\S*")
GRACE_S = 3.0  # to end by itself, which it cannot while the plugin waits for its own child
# The plugin logs every step of its work; pandas and TensorFlow log what they miss.
QUIET = {"TORCH_PROFILER_LOG_LEVEL": "ERROR", "TF_CPP_MIN_LOG_LEVEL": "3"}


class Server:
    """TensorBoard, listening at ``url``."""

    def __init__(self, process: subprocess.Popen[bytes], url: str, log: Path) -> None:
        self.url, self._process, self._log = url, process, log

    def wait(self) -> None:
        """Blocks until TensorBoard is stopped. Raises LaunchError if it failed."""
        code = self._process.wait()
        raise LaunchError(f"TensorBoard ended with exit code {code}", _last(self._log), 1)


@contextmanager
def serve(
    logdir: Path, title: str, scratch: Path, port: int = 0, google_charts: bool = False
) -> Iterator[Server]:
    """Start TensorBoard; whatever happens, it and all its children are gone at the end.

    ``port`` 0: a free one. ``google_charts``: see :mod:`tdiag.view.charts`. ``scratch``: a folder
    for its output and temporary files, some of which it leaves behind. It runs in its own session,
    so that Ctrl-C reaches only tdiag; if tdiag is killed, it ends, too. Raises UsageError if the
    port is taken, LaunchError if it does not start.
    """
    _check(port)
    log = scratch / "tensorboard.log"
    environment = {**os.environ, **QUIET, "TMPDIR": os.fspath(scratch)}
    command = [
        *program("tdiag.view.charts"), "--logdir", os.fspath(logdir),
        "--host", ADDRESS, "--port", str(port), "--window_title", title,
        "--samples_per_plugin", f"scalars={POINTS}", *([GOOGLE_CHARTS] if google_charts else []),
    ]  # fmt: skip
    with log.open("wb") as words:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=words, stderr=words,
            start_new_session=True, env=environment,
            preexec_fn=end_with_this_process(signal.SIGHUP),
        )  # fmt: skip
    try:
        yield Server(process, _listening(process, log), log)
    finally:
        _end(process)


def _check(port: int) -> None:
    """Report a used port at once, not after the seconds that TensorBoard needs to start."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((ADDRESS, port))
        except OSError as error:
            hint = "leave out --port to use a free one"
            raise UsageError(f"port {port} cannot be used: {error.strerror}", hint) from None


def _listening(process: subprocess.Popen[bytes], log: Path) -> str:
    """The URL, once TensorBoard has printed it, which means that it answers there."""
    while True:
        ended = process.poll() is not None
        text = log.read_text(errors="replace")
        if found := _URL.search(text):
            return found[0]
        if ended:
            raise LaunchError("TensorBoard did not start", _last(log), 1)
        time.sleep(TICK_S)


def _last(log: Path) -> str:
    lines = log.read_text(errors="replace").split("\n")
    return next((line.strip() for line in reversed(lines) if line.strip()), "it said nothing")


def _end(process: subprocess.Popen[bytes]) -> None:
    """Ask the whole session to end, then force it; a second Ctrl-C must not leave it behind."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(GRACE_S)
    signal.signal(signal.SIGINT, before)
