"""Loads the probe into a process that runs without it, for one pass of windows.

Python 3.14 and newer run a file in another process of the same version, in its main thread and
between two instructions (``sys.remote_exec``, PEP 768). The process's own interpreter is started to
ask for it, so that tdiag itself may run under any version.
"""

from __future__ import annotations

import inspect
import os
import re
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

import tdiag
from tdiag.launch.visiting import (
    ANSWER_WITHIN_S,
    TICK_S,
    answer,
    declined,
    request,
    withdraw,
)
from tdiag.probe import wire
from tdiag.sample.running import Running, has_torch

PROBE = "tdiag_probe"
PROBE_FOLDER = str(Path(tdiag.__file__).parent / "probe")
# A program that embeds Python under another name may not understand an interpreter's options.
INTERPRETER = re.compile(r"python[\d.]*[td]*")
ASK = """
import sys
if not hasattr(sys, "remote_exec"):
    sys.exit("Python %d.%d cannot load it, 3.14 can" % sys.version_info[:2])
sys.remote_exec(int(sys.argv[1]), sys.argv[2])
"""
ASKED_WITHIN_S = 10.0
LAST_ANSWER_S = 1.0  # later than the other ranks'


def load_probe(folder: str) -> Any:  # its source also runs in other processes
    """The probe, loaded by path, so that tdiag need not be installed in this environment."""
    import sys
    from importlib.util import module_from_spec, spec_from_file_location

    if "tdiag_probe" not in sys.modules:
        spec = spec_from_file_location(
            "tdiag_probe", folder + "/__init__.py", submodule_search_locations=[folder]
        )
        assert spec is not None and spec.loader is not None
        sys.modules["tdiag_probe"] = module = module_from_spec(spec)
        spec.loader.exec_module(module)
    return sys.modules["tdiag_probe"]


class Loading:
    """Loads the probe into these programs and into all processes below them that have loaded torch,
    such as loader workers and spawned ranks. It writes one pass of windows to ``run_dir``."""

    def __init__(self, found: Sequence[Running], run_dir: Path) -> None:
        self.programs = [process.pid for process in found]
        self.run_dir, self.control = run_dir, run_dir / wire.CONTROL
        load = f"load_probe({PROBE_FOLDER!r}).visit({str(run_dir)!r})"
        self.script = self._written("load.py", f"{inspect.getsource(load_probe)}\n", load)
        self.asked: set[int] = set()

    def begin(self, alive: Callable[[], bool]) -> str:
        """Returns why no pass is measured, empty if it is; then call :meth:`leave` in the end."""
        request(self.control, self.run_dir)
        begun = False
        try:
            why = next(filter(None, (self._ask(pid) for pid in self.programs)), "")
            if not why:
                for pid in self._below():
                    self._ask(pid)  # where it fails, this process is not measured
                why = self._declined(alive)
            begun = not why
        finally:
            if not begun:
                withdraw(self.control)
                (self.control / wire.FINISH).touch()  # those that have begun end
                self.leave()
        return why

    def look(self) -> None:
        """Also load it into processes that have started since, unless they are forks of one that
        has loaded it."""
        for pid in self._below():
            if pid not in self.asked:
                self.asked.add(pid)
                with suppress(psutil.Error):
                    child = psutil.Process(pid)
                    if child.cmdline() != psutil.Process(self.programs[0]).cmdline():
                        self._ask(pid)

    def leave(self) -> None:
        """Have the probe leave the processes that have made no step. The others have left
        already."""
        leave = f"sys.modules[{PROBE!r}].leave()"
        script = self._written("leave.py", "import sys\n", leave)
        for pid in (*self.programs, *self._below()):
            _run_in(pid, script)

    def _ask(self, pid: int) -> str:
        self.asked.add(pid)
        return _run_in(pid, self.script)

    def _declined(self, alive: Callable[[], bool]) -> str:
        """Wait for the answers. Returns why there is no pass, empty if there is."""
        said: dict[int, str] = {}
        now = last = time.monotonic()
        until = now + ANSWER_WITHIN_S
        while now < until and alive():
            found = {pid: answer(self.control, pid) for pid in self.asked}
            new = {pid: text for pid, text in found.items() if text is not None and pid not in said}
            if new:
                said, last = said | new, now
            if why := next(filter(None, map(declined, said.values())), ""):
                return why
            # A program that has spawned ranks waits for them and does not answer.
            if said and (said.keys() >= set(self.programs) or now - last > LAST_ANSWER_S):
                lead = any(text.endswith(" 0") for text in said.values())
                return "" if lead else "rank 0, which leads a pass, is not below this process"
            time.sleep(TICK_S)
            now = time.monotonic()
        return (
            f"it did not answer within {ANSWER_WITHIN_S:g} s (it answers between two Python"
            " instructions of its main thread)"
        )

    def _below(self) -> list[int]:
        """The other processes below the programs that have loaded torch."""
        found: list[int] = []
        for pid in self.programs:
            with suppress(psutil.Error):
                below = psutil.Process(pid).children(recursive=True)
                found += [child.pid for child in below if child.pid not in self.programs]
        return [pid for pid in found if has_torch(pid)]

    def _written(self, name: str, first: str, does: str) -> Path:
        """A script for a process. It raises nothing there; without an answer nothing is
        measured."""
        file = self.control / name
        text = f"{first}try:\n    {does}\nexcept Exception:\n    pass\n"
        file.write_text(f"from __future__ import annotations\n{text}", encoding="utf-8")
        return file


def _run_in(pid: int, script: Path) -> str:
    """Have the process run the script. Returns why it will not, empty if it will."""
    try:
        process, root = psutil.Process(pid), Path(f"/proc/{pid}/root")
        if process.uids().effective != os.geteuid():
            return f"it belongs to user {process.username()}; run tdiag as that user"
        if not root.samefile("/"):
            return "it runs in a container, which does not see the run directory"
        interpreter = Path(f"/proc/{pid}/exe").resolve(strict=True)
        if not INTERPRETER.fullmatch(interpreter.name):
            return f"{interpreter.name} is no Python interpreter"
        done = run_script(str(interpreter), pid, script)
    except (OSError, psutil.Error, subprocess.TimeoutExpired) as error:
        return f"{type(error).__name__}: {error}"
    said = done.stderr.strip().splitlines()
    return (said[-1] if said else f"exit code {done.returncode}") if done.returncode else ""


def run_script(interpreter: str, pid: int, script: Path) -> subprocess.CompletedProcess[str]:
    """Ask for it by the process's own interpreter."""
    return subprocess.run(
        [interpreter, "-I", "-S", "-c", ASK, str(pid), str(script)],
        stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
        timeout=ASKED_WITHIN_S,
    )  # fmt: skip
