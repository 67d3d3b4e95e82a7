"""Starts the user's program and waits for it, without changing its signals and exit code.

The program shares tdiag's terminal, standard streams and process group, as under ``time`` or
``nice``: the terminal sees one job, and the program sees a terminal.

* Ctrl-C, Ctrl-\\ and a hang-up reach it from the terminal itself, which signals the whole group,
DataLoader workers included; tdiag neither swallows nor repeats them. * A signal sent to tdiag alone
(``kill``, a batch system) is passed on to the program. The sender is in ``si_code``, which only
``sigtimedwait`` shows, so tdiag blocks the signals and waits for them. (A sender that signals the
whole group, such as ``timeout``, looks the same: then the program gets the signal twice.) * So the
*first* Ctrl-C does what it does under plain Python: KeyboardInterrupt in the script, whose own
handlers and ``finally`` run. tdiag waits for that and reports what was measured; a script that goes
on training is stopped at its next step boundary through ``control/finish``. Delaying Ctrl-C until a
step boundary is no alternative: DataLoader workers die of it at once, and a hanging script has no
next boundary. * The *second* also reaches the script and cancels the report; the *third* kills the
script.
"""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from tdiag.errors import LaunchError, UsageError
from tdiag.launch.preflight import CANNOT_EXECUTE, NOT_FOUND

SI_KERNEL = 0x80  # si_code of a signal from the kernel, e.g. from a terminal (siginfo.h)
TICK_S = 0.05  # the longest that the probe waits for an answer in control/
INTERRUPTS_TO_SKIP_REPORT, INTERRUPTS_TO_KILL = 2, 3


@dataclass
class Ended:
    """How the program ended. ``code``: what the shell would show, 128+n for a signal n."""

    code: int
    signal: int | None
    interrupts: int

    @property
    def report_wanted(self) -> bool:
        return self.interrupts < INTERRUPTS_TO_SKIP_REPORT


def run(
    command: Sequence[str],
    environment: Mapping[str, str],
    *,
    stdout: int | None,
    started: Callable[[int], None],
    tick: Callable[[], None],
    interrupted: Callable[[], None],
) -> Ended:
    """Run the program to its end. Call it in the main thread, before any other thread exists.

    ``stdout``: a file descriptor to use instead of tdiag's. ``started(pid)``, ``tick()`` (every
    ``TICK_S``) and ``interrupted()`` (each SIGINT) are called between waits.
    Raises LaunchError if the program cannot be executed (126, 127).
    """
    if not hasattr(signal, "sigtimedwait"):
        raise UsageError("tdiag run needs Linux", "tdiag analyze reads traces on any system")
    handed_on = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT,
                 signal.SIGUSR1, signal.SIGUSR2}  # fmt: skip
    waited = handed_on | {signal.SIGCHLD}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, waited)
    try:
        child = _spawn(command, environment, stdout, before)
        started(child.pid)
        interrupts = 0
        while True:
            code = child.poll()
            # Once the program is gone, queued signals are only counted; otherwise they would become
            # tdiag's own KeyboardInterrupt when the mask is lifted.
            info = signal.sigtimedwait(waited, TICK_S if code is None else 0)
            if info is not None and info.si_signo in handed_on:
                if info.si_signo == signal.SIGINT:
                    interrupts += 1
                    interrupted()
                if interrupts >= INTERRUPTS_TO_KILL:
                    child.kill()
                elif info.si_code != SI_KERNEL:
                    child.send_signal(info.si_signo)
            if info is None and code is not None:
                break
            tick()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    died_of = -code if code < 0 else None
    return Ended(128 + died_of if died_of else code, died_of, interrupts)


def _spawn(
    command: Sequence[str], environment: Mapping[str, str], stdout: int | None, mask: set[int]
) -> subprocess.Popen[bytes]:
    try:
        return subprocess.Popen(
            command, env=environment, stdout=stdout,
            # A blocked mask survives exec, so the program gets the mask that tdiag was started
            # with.
            preexec_fn=lambda: signal.pthread_sigmask(signal.SIG_SETMASK, mask),
        )  # fmt: skip
    except FileNotFoundError as error:
        raise LaunchError(f"cannot start {command[0]}: {error.strerror}", "", NOT_FOUND) from None
    except OSError as error:
        raise LaunchError(f"cannot start {command[0]}: {error.strerror}", "",
                          CANNOT_EXECUTE) from None  # fmt: skip
