"""py-spy, attached by pid (``py-spy record -- python …`` loses the exit code).

It samples only after it has read the interpreter's state; until then a window would record nothing.
Where it is not installed, or does not know the Python, Python's own sampler takes its place.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from tdiag.probe.wire import (
    ANSWER_WITHIN_S,
    FIRST_LATE_PASS,
    PY_SPY,
    SAMPLE,
    late_stacks_file,
    stacks_file,
)
from tdiag.sample import tachyon
from tdiag.sample.attached import Attacher

RATE_HZ = 100  # py-spy's own default; ±2.5 % on a share after 4 s (√(p(1−p)/n) at worst)
SAMPLING = "Sampling process"  # printed by `py-spy record` once its sampler is initialised
# If all cores are busy, reading the symbols takes several times as long.
DUMP_WITHIN_S = 5 * ANSWER_WITHIN_S
ABSENT = "py-spy is not installed in tdiag's environment"
PTRACE_SCOPE = Path("/proc/sys/kernel/yama/ptrace_scope")


def find_program() -> str | None:
    """The py-spy of tdiag's own environment, else of PATH, else where pip put it: ``pip install
    --user`` and ``--target`` have folders of their own, which PATH may not name."""
    beside = shutil.which("py-spy", path=str(Path(sys.executable).parent))
    return beside or shutil.which("py-spy") or _installed()


def can_sample(version: str) -> bool:
    """Whether there is a sampler for a process of this Python version (``3.11.4``)."""
    return find_program() is not None or tachyon.has_sampler(version)


def _installed() -> str | None:
    with contextlib.suppress(metadata.PackageNotFoundError):
        package = metadata.distribution("py-spy")
        files = [file for file in package.files or () if file.stem == "py-spy"]
        folders = {str(Path(str(package.locate_file(file))).parent) for file in files}
        # With --target pip moves the programs after it has written the package's list of files.
        folders.add(str(package.locate_file("bin")))
        return shutil.which("py-spy", path=os.pathsep.join(sorted(folders)))
    return None


def allow_hint() -> str:
    """What to change so that py-spy may attach, as far as this machine shows."""
    ways = ["in a container start it with `--cap-add SYS_PTRACE`"]
    with contextlib.suppress(OSError):
        if PTRACE_SCOPE.read_text().strip() not in ("", "0"):
            ways.insert(0, "`sudo sysctl -w kernel.yama.ptrace_scope=0`")
    return "to allow it: " + ", or ".join(ways)


def refusal(log: str, code: int) -> str:
    """py-spy's last error in one line, with what to allow if permission is missing."""
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    errors = [line for line in lines if line.lower().startswith(("error", "reason"))]
    why = "; ".join(errors) or (lines[-1] if lines else f"exit code {code}")
    text = log.lower()
    if any(sign in text for sign in ("permission denied", "operation not permitted", "eperm")):
        return f"the system does not let py-spy read the process; {allow_hint()}"
    return f"py-spy: {why}"


@dataclass(frozen=True)
class Frame:
    name: str
    file: str
    line: int

    def place(self) -> str:
        """The last two parts of the file, and the line."""
        return f"{'/'.join(Path(self.file).parts[-2:])}:{self.line}"


def dump(pid: int) -> list[Frame]:
    """The stack of the process's main thread, innermost frame first; empty if it cannot be read."""
    for command in _dumps(pid):
        with contextlib.suppress(OSError, subprocess.SubprocessError, ValueError):
            done = _run(command, ANSWER_WITHIN_S)
            threads = json.loads(done.stdout) if not done.returncode else []
            main = next((t for t in threads if t.get("thread_name") == "MainThread"), None)
            if main is not None:
                return [Frame(f["name"], f["filename"], f.get("line") or 0) for f in main["frames"]]
    return []


def why_refused(pid: int) -> str:
    """Why the process cannot be sampled, in one line; "" if it can: tested by reading its stacks
    once."""
    said = ABSENT
    for command in _dumps(pid):
        try:
            done = _run(command, DUMP_WITHIN_S)
        except (OSError, subprocess.SubprocessError) as error:
            why = f"py-spy: {error}"
        else:
            if not done.returncode:
                return ""
            why = refusal((done.stdout + done.stderr).decode(errors="replace"), done.returncode)
        said = why if said == ABSENT else said
    return said


def _dumps(pid: int) -> list[list[str]]:
    """The commands that print a process's stacks, the best first."""
    program, other = find_program(), tachyon.command(pid)
    mine = [program, "dump", "--json", "--full-filenames", "--pid", str(pid)] if program else None
    return [command for command in (mine, other) if command]


def _run(command: list[str], within_s: float) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(command, capture_output=True, timeout=within_s, check=False)


class PySpy(Attacher):
    """Samples the process and its descendants, requests ``sample-<pid>-<pass>``."""

    name, prefix, suffix = PY_SPY, SAMPLE, ".speedscope.json"
    absent = ABSENT

    def __init__(self, run_dir: Path, *, enabled: bool = True, rate_hz: int = RATE_HZ) -> None:
        super().__init__(run_dir, find_program() if enabled else None)
        self.rate_hz = rate_hz

    def command(self, program: str, pid: int, output: Path) -> list[str]:
        return [
            program, "record", "--pid", str(pid), "--subprocesses", "--idle",
            "--format", "speedscope", "--rate", str(self.rate_hz), "--full-filenames",
            "--output", str(output),
        ]  # fmt: skip

    def second(self, pid: int, output: Path) -> list[str] | None:
        return tachyon.command(pid, str(self.rate_hz), str(output))

    def watching(self, log: str) -> bool:
        return SAMPLING in log

    def refusal(self, log: str, code: int) -> str:
        return refusal(log, code)

    def final(self, name: str) -> Path:
        _, pid, number = name.split("-")
        late = number.isdigit() and int(number) >= FIRST_LATE_PASS
        return self.run_dir / (late_stacks_file(pid, number) if late else stacks_file(pid))
