"""Starting the user's program and waiting for it, so that signals and exit codes stay its own.

The program shares our terminal, standard streams and process group, as under ``time`` or
``nice``: a terminal still sees one job, the program still sees a terminal.

* Ctrl-C, Ctrl-\\ and a hang-up reach it from the terminal itself, which signals the whole group,
  DataLoader workers included; tdiag neither swallows nor repeats them.
* A signal sent to tdiag alone (``kill``, a batch system) is handed on to the program. Who sent it
  stands in ``si_code``, which only ``sigtimedwait`` shows; hence the signals are blocked here
  and waited for. (A sender that signals the whole group, such as ``timeout``, is
  indistinguishable from one that means us: there the program gets the signal twice.)
* The *first* Ctrl-C therefore does what it does under plain Python: KeyboardInterrupt in the
  script, whose own handlers and ``finally`` run. tdiag waits for that and reports what there is;
  a script that goes on training is stopped at its next step boundary through
  ``control/finish``. Holding Ctrl-C back until a step boundary is no alternative: DataLoader
  workers die of it at once, and a hanging script has no next boundary.
* The *second* reaches the script as well and gives up the report; the *third* kills the script.
"""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from tdiag.errors import LaunchError, UsageError
from tdiag.launch.preflight import CANNOT_EXECUTE, NOT_FOUND

SI_KERNEL = 0x80  # si_code of a signal the kernel made, e.g. from a terminal (siginfo.h)
TICK_S = 0.05  # how long the probe may wait for an answer to a request in control/
INTERRUPTS_TO_SKIP_REPORT, INTERRUPTS_TO_KILL = 2, 3


@dataclass
class Ended:
    """How the program ended. ``code`` is what the shell would show: 128+n for a signal n."""

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
    """Run the program to its end. Main thread only, before any other thread exists.

    ``stdout``: a file descriptor to use instead of tdiag's. ``started(pid)``, ``tick()`` (every
    ``TICK_S``) and ``interrupted()`` (each SIGINT) are called between waits.
    Raises LaunchError where the program cannot be executed (126, 127).
    """
    if not hasattr(signal, "sigtimedwait"):
        raise UsageError("tdiag run needs Linux", "traces made elsewhere can be read on any system")
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
            # Once the program is gone, what is still queued is only counted, never left to be
            # raised as our own KeyboardInterrupt when the mask is lifted.
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
            # A blocked mask survives exec; the program must get the one we were given.
            preexec_fn=lambda: signal.pthread_sigmask(signal.SIG_SETMASK, mask),
        )  # fmt: skip
    except FileNotFoundError as error:
        raise LaunchError(f"cannot start {command[0]}: {error.strerror}", "", NOT_FOUND) from None
    except OSError as error:
        raise LaunchError(f"cannot start {command[0]}: {error.strerror}", "",
                          CANNOT_EXECUTE) from None  # fmt: skip
