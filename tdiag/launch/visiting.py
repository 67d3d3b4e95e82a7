"""One pass of windows in a training that runs already.

The probe is in the process because `tdiag run` started it, or is loaded into it (loading.py). It
writes to a run directory of its own, for which this process does what `tdiag run` does: it samples
the stacks with py-spy and watches the machine.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from tdiag.launch import rundir
from tdiag.launch.display import Display
from tdiag.launch.progress import Progress
from tdiag.probe import wire
from tdiag.sample.pyspy import PySpy
from tdiag.sample.running import Running
from tdiag.sample.system import SystemSampler

# The probe looks for a request once a second, at the end of a step.
ANSWER_WITHIN_S = 10.0
END_WITHIN_S = 5.0  # after Ctrl-C: the step in progress
TICK_S, SYSTEM_EVERY_S = 0.05, 0.5
NO_ROOF = "this machine's best rates are measured after a run, and this one goes on"


def probed_run(process: Running) -> Path | None:
    """The run directory of the `tdiag run` that started the process, None if none did."""
    name = process.environment.get(wire.RUN_VARIABLE)
    return Path(name) if name else None


def begin(own: Path, run_dir: Path, pid: int, alive: Callable[[], bool]) -> str:
    """Ask the probe of process ``pid`` in the run ``own`` to write one pass of windows to
    ``run_dir``. Returns why it does not, empty if it does."""
    if why := unready(own, pid):
        return why
    control = own / wire.CONTROL
    with suppress(OSError):
        (control / wire.visit_answer(pid)).unlink()
    try:
        request(control, run_dir)
    except OSError as error:
        return f"its run directory cannot be written: {error.strerror}"
    until = time.monotonic() + ANSWER_WITHIN_S
    while time.monotonic() < until and alive():
        if (said := answer(control, pid)) is not None:
            return declined(said)
        time.sleep(TICK_S)
    withdraw(control)
    return (
        f"it did not answer within {ANSWER_WITHIN_S:g} s (it answers between two steps, if an"
        " optimizer ends them)"
    )


def request(control: Path, run_dir: Path) -> None:
    """Ask the probes that look into ``control`` for a pass of windows."""
    file = control / wire.VISIT_ASKED
    part = file.with_suffix(".part")
    part.write_text(json.dumps({"run_dir": str(run_dir)}), encoding="utf-8")
    part.replace(file)


def withdraw(control: Path) -> None:
    with suppress(OSError):
        (control / wire.VISIT_ASKED).unlink()


def answer(control: Path, pid: int) -> str | None:
    """What process ``pid`` has answered so far."""
    with suppress(OSError):
        return (control / wire.visit_answer(pid)).read_text(encoding="utf-8")
    return None


def declined(said: str) -> str:
    """Why a pass was declined, empty if it was accepted."""
    return said.removeprefix(wire.REFUSED) if said.startswith(wire.REFUSED) else ""


def unready(own: Path, pid: int) -> str:
    """Why nobody can be asked, empty if the probe can be."""
    if not (own / wire.CONTROL).is_dir():
        return f"its run directory {own} is not here"
    progress = Progress(own)
    progress.look()
    mine = [p for p in progress.processes.values() if p.file.pid == pid]
    if not mine or not mine[0].steps:
        return "it has seen no step of this process"
    return "" if mine[0].finish else "its own windows still run, and `tdiag run` will report them"


class Visit:
    """Attends a pass: what `tdiag run` does for a run."""

    def __init__(
        self, run_dir: Path, record: dict[str, Any], budget_s: float, refused: str,
        display: Display, alive: Callable[[], bool],
    ) -> None:  # fmt: skip
        """``record``: run.json; ``refused``: why py-spy cannot sample, empty if it can."""
        self.run_dir, self.record, self.budget_s = run_dir, record, budget_s
        self.display, self.alive = display, alive
        config = {
            "profiling": False,
            "steps": None,
            "time_budget_s": budget_s,
            "windows": wire.STANDARD,
            "sampler": wire.IN_PROCESS if refused else wire.PY_SPY,
            "sampler_hint": refused,
            wire.KERNEL: True,
            wire.VISIT: True,
        }
        rundir.write_json(run_dir / wire.CONFIG, config)
        rundir.write_json(run_dir / wire.RUN, record)
        rundir.write_json(run_dir / wire.ROOF, {"rates": [], "why": NO_ROOF})
        self.pyspy = PySpy(run_dir, enabled=not refused)
        self.progress = Progress(run_dir)

    def run(
        self, own: Path, root: int, environment: Mapping[str, str],
        look: Callable[[], None] = lambda: None,
    ) -> None:  # fmt: skip
        """Watch until the pass is over. Ctrl-C ends it after the step in progress. ``root``: the
        highest process of the job. ``look``: called now and then."""
        self.look = look
        self.system = SystemSampler(self.run_dir / "system.jsonl", root, environment)
        try:
            self._watch(2 * self.budget_s + ANSWER_WITHIN_S)
        except KeyboardInterrupt:
            self.record["notes"].append("the watching was interrupted")
        finally:
            self._ask_to_end()
            withdraw(own / wire.CONTROL)
            self.pyspy.close()
            self.system.close()
            _take_over_workers(own, self.run_dir)
        if not self.alive():
            self.record["notes"].append("the process ended while it was watched")
        self.record["end_unix_ns"] = time.time_ns()
        rundir.write_json(self.run_dir / wire.RUN, self.record)

    def _ask_to_end(self) -> None:
        if not self._over():
            (self.run_dir / wire.CONTROL / wire.FINISH).touch()
            self._watch(END_WITHIN_S)

    def _watch(self, seconds: float) -> None:
        until, next_look = time.monotonic() + seconds, 0.0
        while (now := time.monotonic()) < until and not self._over() and self.alive():
            self.pyspy.tick()
            if now >= next_look:
                next_look = now + SYSTEM_EVERY_S
                self.system.sample()
                self.progress.look()
                self.look()
                self.display.update(self.progress, now)
            time.sleep(TICK_S)
        self.progress.look()
        self.display.update(self.progress, time.monotonic())

    def _over(self) -> bool:
        """Whether every rank has ended its pass."""
        ranks = [p for p in self.progress.processes.values() if p.steps]
        over = (self.run_dir / wire.CONTROL / wire.OVER).exists()
        return over and all(rank.finish for rank in ranks)


def _take_over_workers(own: Path, run_dir: Path) -> None:
    """Copy what loader workers write that live since before the pass: to the run that started them.
    They go on timing a fetch now and then."""
    written = {file.pid: file for file in wire.events_files(run_dir)}
    records = [record for file in written.values() for record in file.read()]
    iterators = [json.loads(line) for kind, line in records if kind == "iterator"]
    wanted = {pid for iterator in iterators for pid in iterator["pids"]} - written.keys()
    for file in wire.events_files(own):
        if file.pid in wanted:
            shutil.copyfile(file.path, run_dir / wire.EVENTS / Path(file.path).name)
