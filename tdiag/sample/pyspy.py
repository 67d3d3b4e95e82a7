"""py-spy, attached by pid when the probe asks for it through ``control/`` (docs/run-directory.md).

Attached, never as the program's parent: ``py-spy record -- python …`` loses the exit code. Each
request ``sample-<pid>-<pass>.want`` gets one py-spy process, which lives until ``.stop`` appears
or the program ends. ``attached`` is answered only when py-spy has read the interpreter's state
and samples, since until then a window of samples would hold none.
"""

from __future__ import annotations

import contextlib
import shutil
import signal
import subprocess
import sys
from pathlib import Path

RATE_HZ = 100  # py-spy's own default; ±2.5 % on a share after 4 s (√(p(1−p)/n) at worst)
SAMPLING = "Sampling process"  # printed by `py-spy record` once its sampler is initialised
# Writing a minute of stacks takes py-spy well under a second; more means that it hangs.
STOP_WITHIN_S = 10.0
PTRACE_SCOPE = Path("/proc/sys/kernel/yama/ptrace_scope")


def find_program() -> str | None:
    """py-spy of our own environment first, then of PATH."""
    return shutil.which("py-spy", path=str(Path(sys.executable).parent)) or shutil.which("py-spy")


def allow_hint() -> str:
    """What to change so that py-spy may attach, as far as this machine tells."""
    ways = ["in a container start it with `--cap-add SYS_PTRACE`"]
    with contextlib.suppress(OSError):
        if PTRACE_SCOPE.read_text().strip() not in ("", "0"):
            ways.insert(0, "`sudo sysctl -w kernel.yama.ptrace_scope=0`")
    return "to allow it: " + ", or ".join(ways)


def refusal(log: str, code: int) -> str:
    """py-spy's last error in one line, with what to allow where permission is what lacks."""
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    errors = [line for line in lines if line.lower().startswith(("error", "reason"))]
    why = "; ".join(errors) or (lines[-1] if lines else f"exit code {code}")
    text = log.lower()
    if any(sign in text for sign in ("permission denied", "operation not permitted", "eperm")):
        return f"the system does not let py-spy read the process; {allow_hint()}"
    return f"py-spy: {why}"


class Attached:
    """One py-spy process sampling ``pid`` and its descendants."""

    def __init__(self, program: str, pid: int, output: Path) -> None:
        """Raises OSError where py-spy or its log cannot be started or written."""
        self.output = output
        self.log = output.with_suffix(".log")
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [program, "record", "--pid", str(pid), "--subprocesses", "--idle",
                 "--format", "speedscope", "--rate", str(RATE_HZ), "--full-filenames",
                 "--output", str(output)],
                stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT,
                start_new_session=True,  # a terminal's Ctrl-C is not for py-spy
                # tdiag waits for signals with all of them blocked, and a mask survives exec.
                preexec_fn=lambda: signal.pthread_sigmask(signal.SIG_SETMASK, set()),
            )  # fmt: skip

    def text(self) -> str:
        with contextlib.suppress(OSError):
            return self.log.read_text(errors="replace")
        return ""

    def sampling(self) -> bool:
        return SAMPLING in self.text()

    def ended(self) -> bool:
        return self.process.poll() is not None

    def stop(self) -> None:
        """Ask for the file; py-spy writes it on SIGINT."""
        if not self.ended():
            self.process.send_signal(signal.SIGINT)

    def wait(self) -> None:
        """Until the file is written, or py-spy has proved to hang."""
        try:
            self.process.wait(STOP_WITHIN_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


class PySpy:
    """Answers the probe's requests; ``tick`` is called some twenty times a second."""

    def __init__(self, run_dir: Path, *, enabled: bool = True) -> None:
        self.run_dir = run_dir
        self.control = run_dir / "control"
        self.program = find_program() if enabled else None
        self.seen: set[str] = set()
        self.live: dict[str, Attached] = {}
        self.answered: set[str] = set()

    def tick(self) -> None:
        """Start what is asked for, answer what has become clear, stop what is over."""
        with contextlib.suppress(OSError):
            for want in self.control.glob("sample-*.want"):
                if want.stem not in self.seen:
                    self.seen.add(want.stem)
                    self._start(want.stem)
        for name, attached in list(self.live.items()):
            if name not in self.answered:
                self._answer_if_clear(name, attached)
            if attached.ended():
                self._keep(name)
            elif (self.control / f"{name}.stop").exists():
                attached.stop()

    def close(self) -> None:
        """The program has ended: let each py-spy write its file."""
        for name, attached in list(self.live.items()):
            attached.stop()
            attached.wait()
            self._keep(name)

    def _start(self, name: str) -> None:
        if self.program is None:
            self._answer(name, "refused: py-spy is not installed beside tdiag")
            return
        try:
            pid = int(name.split("-")[1])
            output = self.control / f"{name}.speedscope.json"
            self.live[name] = Attached(self.program, pid, output)
        except (OSError, ValueError, IndexError) as error:
            self._answer(name, f"refused: cannot start py-spy: {error}")

    def _answer_if_clear(self, name: str, attached: Attached) -> None:
        if attached.sampling():
            self._answer(name, "attached")
        elif attached.ended():
            self._answer(name, f"refused: {refusal(attached.text(), attached.process.returncode)}")

    def _answer(self, name: str, state: str) -> None:
        self.answered.add(name)
        part = self.control / f"{name}.state.part"
        with contextlib.suppress(OSError):  # the probe goes on by itself when nobody answers
            part.write_text(state + "\n")
            part.replace(self.control / f"{name}.state")

    def _keep(self, name: str) -> None:
        """Move the stacks to where readers look; of two passes the one that saw more stays."""
        output = self.live.pop(name).output
        final = self.run_dir / f"stacks-{name.split('-')[1]}.speedscope.json"
        with contextlib.suppress(OSError):
            if not final.exists() or output.stat().st_size >= final.stat().st_size:
                output.replace(final)
