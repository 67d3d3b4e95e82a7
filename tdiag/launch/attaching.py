"""Watches a process that already runs; nothing is restarted.

A probe in it measures one pass of windows (visiting.py): the one with which `tdiag run` started it,
or one that is loaded now (loading.py). Where neither is possible, it is watched from outside: first
only the kernel's counters are read (threads, disk reads, GPUs), then py-spy samples the stacks.
Everything is written into a run directory.
"""

from __future__ import annotations

import platform
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

import tdiag
from tdiag.errors import RunError, TdiagError, UsageError
from tdiag.launch import rundir
from tdiag.launch.display import Display
from tdiag.launch.loading import Loading
from tdiag.launch.visiting import Visit, begin, probed_run, unready
from tdiag.model.threshold import Threshold
from tdiag.probe import wire
from tdiag.sample import limits
from tdiag.sample.pyspy import ABSENT, DUMP_WITHIN_S, PySpy, why_refused
from tdiag.sample.running import Running, find
from tdiag.sample.states import ThreadStates
from tdiag.sample.system import SystemSampler

ALONE_FRAC = Threshold(
    0.25,
    "of the time budget",
    "Heuristic: for this part the counters are read without py-spy, whose pauses would disturb"
    " them; sampling gets the rest, because a share needs more time.",
)
# Fewer samples than in a run's own window, because each one stops the process (docs/attach.md).
# A share is within ±2.6 % after 15 s (√(p(1−p)/n) at worst).
RATE_HZ = 25
TICK_S, SYSTEM_EVERY_S = 0.05, 0.5
LOOK_SHARE = 0.01  # the same as for finding the processes (sample/system.py)


def attach(
    pid: int, *, time_budget_s: float, all_ranks: bool = False, outside: bool = False,
    out: Path | None = None, quiet: bool = False,
) -> Path:  # fmt: skip
    """Watch the training process ``pid``, or the one below it, and return the run directory.

    ``all_ranks``: watch all ranks of the job on this machine, not only the lowest; a probe always
    does. ``outside``: load nothing and ask no probe. Ctrl-C ends the watching. Raises UsageError if
    there is no process to watch, RunError if tdiag may not.
    """
    found = find(pid)
    lead, own = found[0], None if outside else probed_run(found[0])
    watched = found if all_ranks else found[:1]
    refused = _unsampled(watched)
    if refused and (own is None or unready(own, lead.pid)):
        raise refused
    run_dir = rundir.create(Path(lead.script).stem or f"process-{lead.pid}", out)
    display = Display(quiet=quiet, profiling=False, budget_s=time_budget_s)
    notes = []
    if not outside:
        why = _visited(found, own, pid, run_dir, time_budget_s, refused, display)
        if not why:
            return run_dir
        notes.append(
            f"`tdiag run` started this process, but its probe did not measure it again: {why};"
            f" it was watched from outside. What the probe measured before: tdiag report {own}"
            if own
            else f"it was watched from outside: tdiag's probe was not loaded into it: {why}"
        )
        if refused:
            raise refused
        if not psutil.pid_exists(lead.pid):
            raise UsageError(f"process {lead.pid} has just ended")
    notes += _notes(pid, found, watched)
    root = pid if len(watched) > 1 else lead.pid
    return _Watch(run_dir, root, watched, time_budget_s, display, notes).run()


def _visited(
    found: list[Running], own: Path | None, pid: int, run_dir: Path, budget_s: float,
    refused: TdiagError | None, display: Display,
) -> str:  # fmt: skip
    """Let the probe measure all ranks of the job: that of the run ``own``, or one loaded now.
    Returns why it does not, empty if it did."""
    lead = found[0]
    processes = [psutil.Process(process.pid) for process in found]

    def alive() -> bool:
        return any(map(_lives, processes))

    note = (
        "`tdiag run` started this process, and its probe measured it while it ran on; the run"
        f" itself: tdiag report {own}"
        if own
        else "this process ran without tdiag: the probe was loaded into it (sys.remote_exec),"
        " measured it while it ran on, and left"
    )
    record = _record(lead, budget_s, [note])
    visit = Visit(run_dir, record, budget_s, refused.message if refused else "", display, alive)
    root = pid if len(found) > 1 else lead.pid
    if own is not None:
        why = begin(own, run_dir, lead.pid, alive)
        if not why:
            display.say(f"process {lead.pid} runs under `tdiag run`: its probe measures it again")
            visit.run(own, root, lead.environment)
        return why
    loading = Loading(found, run_dir)
    why = loading.begin(alive)
    if not why:
        display.say(f"the probe was loaded into process {lead.pid}: it measures and leaves")
        try:
            visit.run(run_dir, root, lead.environment, loading.look)
        finally:
            loading.leave()
    return why


def _record(lead: Running, budget_s: float, notes: list[str]) -> dict[str, Any]:
    """run.json when the watching begins."""
    return {
        "schema": rundir.SCHEMA,
        "command": list(lead.command),
        "script": lead.script,
        "cwd": _link(lead.pid, "cwd"),
        "start_unix_ns": time.time_ns(),
        "end_unix_ns": None,
        "exit_code": None,
        "signal": None,
        "options": {"time_budget_s": budget_s},
        "python": _link(lead.pid, "exe"),
        "python_version": None,
        "torch_version": lead.torch_version,
        "tdiag": tdiag.__version__,
        "hostname": platform.node(),
        "platform": platform.platform(),
        "notes": notes,
    }


class _Watch:
    """``root``: py-spy samples everything below this process."""

    def __init__(
        self, run_dir: Path, root: int, watched: list[Running], budget_s: float,
        display: Display, notes: list[str],
    ) -> None:  # fmt: skip
        self.run_dir = run_dir
        self.root = root
        self.watched = watched
        self.budget_s = budget_s
        self.display = display
        self.notes = notes
        self.pyspy = PySpy(run_dir, rate_hz=RATE_HZ)
        self.states = ThreadStates()
        self.next_look_s = 0.0
        self.system = SystemSampler(run_dir / "system.jsonl", root, watched[0].environment)
        self.processes = [psutil.Process(process.pid) for process in watched]
        lead = watched[0]
        self.record = _record(lead, budget_s, notes) | {
            "attached": {
                "root": root,
                "ranks": [[process.pid, process.rank] for process in watched],
                "device": any(process.device for process in watched),
                "cores_allowed": limits.cores_allowed(lead.pid),
                "started_unix_ns": _started(lead.pid),
                "parents": {},
                "alone_ns": [0, 0],
                "seconds": 0.0,
                "threads": [],
            },
        }

    def run(self) -> Path:
        config = {"windows": [wire.SAMPLE], "sampler": wire.PY_SPY}
        rundir.write_json(self.run_dir / wire.CONFIG, config)
        rundir.write_json(self.run_dir / wire.RUN, self.record)
        began = time.monotonic()
        try:
            self._alone()
            self._sampled()
        except KeyboardInterrupt:
            self.notes.append("the watching was interrupted")
        finally:
            self.pyspy.close()
            self.system.close()
        attached = self.record["attached"]
        attached["seconds"] = round(time.monotonic() - began, 3)
        attached["threads"] = self.states.summary()
        if not self._alive():
            self.notes.append("the process ended while it was watched")
        self.record["end_unix_ns"] = time.time_ns()
        rundir.write_json(self.run_dir / wire.RUN, self.record)
        return self.run_dir

    def _alone(self) -> None:
        names = ", ".join(str(process.pid) for process in self.watched)
        self.display.say(f"watching process {names}: threads, disk, GPU")
        begin = time.perf_counter_ns()
        self._look_at_all()
        self._wait(self.budget_s * ALONE_FRAC, self._look, lambda: False)
        self._look_at_all()
        self.record["attached"]["alone_ns"] = [begin, time.perf_counter_ns()]

    def _look(self) -> None:
        """Look as often as costs at most ``LOOK_SHARE`` of a core, however many processes there
        are."""
        if time.monotonic() >= self.next_look_s:
            began = time.thread_time()
            self._look_at_all()
            cost = time.thread_time() - began
            self.next_look_s = time.monotonic() + cost / LOOK_SHARE

    def _look_at_all(self) -> None:
        self.states.look(process.pid for process in self.system.processes())

    def _sampled(self) -> None:
        """Sample with py-spy, through the same files by which the probe asks for it."""
        name = wire.request(wire.SAMPLE, self.root, 1)
        control = self.run_dir / wire.CONTROL
        state = control / f"{name}{wire.STATE}"
        (control / f"{name}{wire.WANT}").write_text("")
        self._wait(DUMP_WITHIN_S, self.pyspy.tick, state.exists)
        said = state.read_text().strip() if state.exists() else "py-spy did not begin in time"
        if said == wire.ATTACHED:
            self.display.say("sampling stacks with py-spy")
            self._wait(self.budget_s * (1 - ALONE_FRAC), self.pyspy.tick, lambda: False)
        elif self._alive():
            self.notes.append(said.removeprefix(wire.REFUSED))

    def _wait(self, seconds: float, tick: Callable[[], None], done: Callable[[], bool]) -> None:
        """Wait until it is done, the time has passed, all processes have ended, or Ctrl-C."""
        until, system = time.monotonic() + seconds, 0.0
        while (now := time.monotonic()) < until and not done() and self._alive():
            tick()
            if now >= system:
                system = now + SYSTEM_EVERY_S
                self.system.sample()
                self._remember_parents()
            time.sleep(TICK_S)

    def _remember_parents(self) -> None:
        """Record which process started which: the parent owns the workers."""
        parents = self.record["attached"]["parents"]
        for process in self.system.processes():
            with suppress(psutil.Error):
                parents.setdefault(str(process.pid), process.ppid())

    def _alive(self) -> bool:
        return any(_lives(process) for process in self.processes)


def _lives(process: psutil.Process) -> bool:
    with suppress(psutil.Error):
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    return False


def _notes(pid: int, found: list[Running], watched: list[Running]) -> list[str]:
    """Notes on the chosen process, if it is not the one asked for, and on a run of tdiag's in
    it."""
    lead, notes = watched[0], []
    if len(found) > len(watched):
        rank = "" if lead.rank is None else f", rank {lead.rank},"
        notes.append(
            f"{len(found)} training processes run below process {pid}; this is process"
            f" {lead.pid}{rank} alone. All of them: tdiag attach --torchrun {pid}"
        )
    elif len(watched) == 1 and lead.pid != pid:
        notes.append(f"process {pid} does not train; process {lead.pid} below it does")
    return notes


def _unsampled(watched: list[Running]) -> TdiagError | None:
    """The error if not all of these processes can be sampled."""
    for process in watched:
        why = why_refused(process.pid)
        if why == ABSENT:
            return RunError("py-spy is not installed next to tdiag", "pip install py-spy")
        if why:
            return _refused(process.pid, why)
    return None


def _refused(pid: int, why: str) -> RunError | UsageError:
    """The error if py-spy may not read the process or finds no Python in it."""
    tracer = ""
    with suppress(OSError, StopIteration, IndexError):
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        tracer = next(line.split()[1] for line in lines if line.startswith("TracerPid:"))
    if tracer not in ("", "0"):
        return RunError(
            f"process {pid} is already traced by process {tracer} (a debugger, strace, py-spy)",
            "end that one first: the kernel allows only one tracer per process",
        )
    if not psutil.pid_exists(pid):
        return UsageError(f"process {pid} has just ended")
    what, _, allow = why.partition("; to allow it: ")
    if allow:
        return RunError(f"process {pid}: {what}", f"run tdiag as root (sudo), or allow it: {allow}")
    return RunError(f"process {pid} cannot be sampled: {why}")


def _link(pid: int, name: str) -> str:
    with suppress(OSError):
        return str(Path(f"/proc/{pid}/{name}").readlink())
    return ""


def _started(pid: int) -> int:
    with suppress(psutil.Error):
        return int(psutil.Process(pid).create_time() * 1e9)
    return 0
