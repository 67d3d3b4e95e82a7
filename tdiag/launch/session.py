"""One run from start to end: directory, samplers, the program, and how it ended."""

from __future__ import annotations

import os
import platform
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import tdiag
from tdiag.errors import RunError, TdiagError
from tdiag.launch import joining, process, remote, rundir
from tdiag.launch.display import Display
from tdiag.launch.failed_rank import RankWatch
from tdiag.launch.measured_roof import calibrate
from tdiag.launch.preflight import Checked, check
from tdiag.launch.progress import Progress
from tdiag.launch.starting import StartupSampler
from tdiag.launch.target import Target
from tdiag.launch.watchdog import Watchdog
from tdiag.probe import wire
from tdiag.sample.cores import try_cores
from tdiag.sample.pyspy import ABSENT, PySpy, allow_hint, can_sample
from tdiag.sample.storage import try_storage
from tdiag.sample.strace import Strace
from tdiag.sample.system import SystemSampler

INJECT = Path(tdiag.__file__).parent / "probe" / "inject"
LOOK_EVERY_S = 0.5
MOST_FAULTS = 3  # faults of the probe shown in the report; all are in events/

SAMPLERS = (wire.PY_SPY, wire.IN_PROCESS, wire.OFF)


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """``time_budget_s``: seconds from the first step boundary; ``steps`` None: no limit."""

    profiling: bool = False
    steps: int | None = None
    time_budget_s: float = 60.0
    python: str | None = None
    sampler: str = wire.PY_SPY  # one of SAMPLERS
    syscalls: bool = False
    quiet: bool = False
    stdout_to_stderr: bool = False


@dataclass(frozen=True)
class Finished:
    """``notes``: what the user should know about how the run ended; also in ``run.json``.
    ``awaited``: other machines on which the job still runs. ``far``: the URL's folder to which the
    run directory was copied, if the run has a URL."""

    run_dir: Path
    code: int
    report_wanted: bool
    notes: tuple[str, ...]
    awaited: tuple[str, ...] = ()
    far: remote.Folder | None = None

    @property
    def name(self) -> str:
        """The argument for `tdiag report`."""
        return self.far.url if self.far else os.path.relpath(self.run_dir)


def environment(run_dir: Path, base: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The program's environment: ``base``, ``TDIAG_RUN``, and the probe first on PYTHONPATH."""
    mine = base.get("PYTHONPATH")
    path = str(INJECT) + (os.pathsep + mine if mine else "")
    return {**base, wire.RUN_VARIABLE: str(run_dir), "PYTHONPATH": path}


def launch(
    target: Target, options: RunOptions, out: Path | str | None = None,
    distil: Callable[[Path], None] = lambda part: None,
) -> Finished:  # fmt: skip
    """Run the program under the probe. ``out``: the run directory, or a URL. ``distil``: called
    with this machine's part of a job of several machines, when it is complete. Raises TdiagError
    only before the program starts."""
    checked = check(target, options.python)
    command = target.command(checked.python or "python")
    if out is None or not remote.is_url(out):
        run_dir = joining.open_run(target, command, Path(out) if out else None)
        return _Session(target, options, checked, run_dir, distil).run()
    far = remote.Folder(str(out))
    far.join(target, command)
    try:
        run_dir = rundir.create(target.label(), None)
        return _Session(target, options, checked, run_dir, distil, far).run()
    except TdiagError:
        far.withdraw()
        raise


class _Session:
    def __init__(
        self, target: Target, options: RunOptions, checked: Checked, run_dir: Path,
        distil: Callable[[Path], None], far: remote.Folder | None = None,
    ) -> None:  # fmt: skip
        self.options = options
        self.distil, self.far = distil, far
        self.run_dir = run_dir
        self.command = target.command(checked.python or "python")
        self.display = Display(
            quiet=options.quiet, profiling=options.profiling, budget_s=options.time_budget_s
        )
        self.progress = Progress(run_dir)
        self.pyspy = PySpy(run_dir, enabled=options.sampler == wire.PY_SPY)
        self.startup = StartupSampler(
            run_dir, self.progress, enabled=options.sampler == wire.PY_SPY
        )
        self.strace = Strace(run_dir, enabled=options.syscalls)
        self.system: SystemSampler | None = None
        self.watchdog = Watchdog(self.progress)
        self.ranks = RankWatch(self.progress)
        self.looked_s = 0.0
        self.broken = ""  # why tdiag stopped watching
        self.record: dict[str, Any] = {
            "schema": rundir.SCHEMA,
            "command": self.command,
            "script": target.script(),
            "cwd": str(Path.cwd()),
            "start_unix_ns": time.time_ns(),
            "end_unix_ns": None,
            "exit_code": None,
            "signal": None,
            "options": asdict(options),
            "python": checked.python,
            "python_version": checked.python_version,
            "torch_version": checked.torch_version,
            "tdiag": tdiag.__version__,
            "hostname": platform.node(),
            "platform": platform.platform(),
            "notes": [],
        }

    def run(self) -> Finished:
        sampler, why = self.options.sampler, ""
        if sampler == wire.PY_SPY and not can_sample(str(self.record["python_version"])):
            sampler, why = wire.IN_PROCESS, ABSENT
        config = {
            "profiling": self.options.profiling,
            "steps": self.options.steps,
            "time_budget_s": self.options.time_budget_s,
            "windows": (*wire.STANDARD, wire.SYSCALLS) if self.options.syscalls else wire.STANDARD,
            "sampler": sampler,
            "sampler_hint": why or allow_hint(),
        }
        rundir.write_json(self.run_dir / wire.CONFIG, config)
        rundir.write_json(self.run_dir / wire.RUN, self.record)
        try:
            ended = process.run(
                self.command, environment(self.run_dir),
                stdout=2 if self.options.stdout_to_stderr else None,
                started=self._started, tick=self._tick, interrupted=self._interrupted,
            )  # fmt: skip
        finally:
            self.startup.close()
            self.pyspy.close()
            self.strace.close()
            self.ranks.close()
            if self.system:
                self.system.close()
        self.display.end()
        if ended.report_wanted and not ended.interrupts:
            self._guarded(lambda: try_storage(self.run_dir))
            self._guarded(lambda: try_cores(self.run_dir))
            self._guarded(lambda: calibrate(self.run_dir))
        return self._conclude(ended)

    def _started(self, pid: int) -> None:
        self._guarded(lambda: self._watch_system(pid))

    def _tick(self) -> None:
        self._guarded(self._watch)

    def _interrupted(self) -> None:
        self._guarded((self.run_dir / wire.CONTROL / wire.FINISH).touch)

    def _guarded(self, action: Callable[[], None]) -> None:
        """Run an action so that a failure of tdiag stops only the watching: an exception would end
        tdiag and leave the program running. The failure is recorded in the run."""
        if not self.broken:
            try:
                action()
            except Exception as error:
                self.broken = f"tdiag stopped watching: {type(error).__name__}: {error}"

    def _watch_system(self, pid: int) -> None:
        self.system = SystemSampler(self.run_dir / "system.jsonl", pid)

    def _watch(self) -> None:
        self.startup.tick()
        self.pyspy.tick()
        self.strace.tick()
        self.ranks.tick()
        now = time.monotonic()
        if now - self.looked_s >= LOOK_EVERY_S:
            self.looked_s = now
            if self.system:
                self.system.sample()
            self.progress.look()
            if self.system:
                hangs = self.ranks.hangs() and self.options.profiling
                self.watchdog.look(now, self.system.processes, hangs=hangs)
            if stands := self.ranks.look(now):
                for part in stands.split("; "):
                    self.display.say(part)
            self.display.update(self.progress, now)

    def _conclude(self, ended: process.Ended) -> Finished:
        self.progress.look()
        by_tdiag = ended.signal == signal.SIGTERM and self.progress.forced()
        hung = bool(self.watchdog.ended) and not self.progress.stopped()
        as_told = replace(ended, signal=None, code=0)  # tdiag ended it, not the script
        aborted = ended.signal == signal.SIGABRT and self.progress.stopped()
        if (by_tdiag or self.watchdog.ended or aborted) and not hung:
            ended = as_told
        notes = closing_notes(as_told if hung else ended, self.progress)
        if aborted:
            notes.append(
                "the program was killed by SIGABRT while it shut down after tdiag had stopped the"
                " training, perhaps because threads of it still ran; a script that leaves its loop"
                " early may end so without tdiag, too"
            )
        notes += [self.broken] if self.broken else []
        notes += [self.ranks.stands] if self.ranks.stands else []
        notes += self.ranks.started_again()
        if ended.code and not hung and not ended.interrupts and not self.progress.stopped():
            notes += [first] if (first := self.ranks.first_failure()) else []
        if hung:
            notes.append("no process of the job did anything any longer, so tdiag ended it")
        elif self.watchdog.ended:
            notes.append(
                "the program did nothing any longer after tdiag had stopped the training, so tdiag"
                f" ended it: {'; '.join(self.watchdog.ended)}"
            )
        notes += not_watched(self.run_dir)
        shared, far = joining.shared(self.run_dir), self.far
        if ended.report_wanted and (far or len(wire.parts(shared)) > 1):
            self._guarded(lambda: self.distil(self.run_dir))  # whoever reads the end finds it
        self.record.update(end_unix_ns=time.time_ns(), exit_code=ended.code, signal=ended.signal)
        self._write_record(notes)
        awaited = joining.awaited(self.run_dir)
        if not awaited and far is None and len(wire.parts(shared)) > 1:
            awaited = joining.reporting_elsewhere(self.run_dir)
        if far is not None:
            try:
                awaited = far.leave(self.run_dir, whole=ended.report_wanted)
            except RunError as error:
                far = None
                notes.append(f"the run is kept on this machine only: {error.message}")
                self._write_record(notes)
        return Finished(shared, ended.code, ended.report_wanted, tuple(notes), awaited, far)

    def _write_record(self, notes: list[str]) -> None:
        """A full disk only adds a note: it must not hide the exit code."""
        try:
            rundir.write_json(self.run_dir / wire.RUN, self.record | {"notes": notes})
        except RunError as error:
            notes.append(error.message)


def closing_notes(ended: process.Ended, progress: Progress) -> list[str]:
    """How the program ended, if that was unusual, and faults of the probe.

    What this means for the evidence (too few steps, none at all) is reported by the evidence
    loader."""
    notes = []
    when = _when(progress)
    if ended.interrupts:
        notes.append(f"interrupted {when}")
    elif ended.signal is not None:
        name = signal.Signals(ended.signal).name
        memory = " (the kernel does this when memory runs out)" if name == "SIGKILL" else ""
        notes.append(f"the program was killed by {name}{memory} {when}")
    elif ended.code and progress.stopped():
        notes.append(
            "tdiag had stopped the training because its evidence was complete, and then the program"
            f" ended with exit code {ended.code}: this may not happen without tdiag"
        )
    elif ended.code:
        see = "see its own message above"
        notes.append(f"the program ended with exit code {ended.code} {when}: {see}")
    lead = progress.lead()
    if lead is not None and lead.absent:
        notes.append(
            f"{lead.absent} rank{'s' * (lead.absent > 1)} of the job could not be asked to stop"
            " with the others (another machine?) and would have failed without them, so the program"
            " was not ended"
        )
    if progress.forced():
        notes.append("the script catches SystemExit, so it was ended with SIGTERM")
    if not progress.processes and not ended.code and not ended.interrupts:
        notes.append(
            "the probe was never loaded: no Python with torch ran, or one that ignores"
            " PYTHONPATH (-I, -E) or sitecustomize (-S)"
        )
    faults = [what for process in progress.processes.values() for what in process.failures]
    return notes + [f"a fault inside tdiag's probe: {what}" for what in faults[:MOST_FAULTS]]


def not_watched(run_dir: Path) -> list[str]:
    """Why processes that imported torch could not be watched, as the probe reported."""
    try:
        lines = (run_dir / wire.PROBE_ERROR).read_text(errors="replace").splitlines()
    except OSError:
        return []
    return [f"a process could not be watched: {why}" for why in dict.fromkeys(lines)][:MOST_FAULTS]


def _when(progress: Progress) -> str:
    lead = progress.lead()
    if lead is None:
        return "before the first training step"
    if lead.finish not in ("", "exit", "error"):
        return "after tdiag had stopped watching"
    steps = lead.steps + 1  # the first only starts the clock and is not recorded
    return f"after {steps} training step{'s' * (steps > 1)} ({lead.steps} measured)"
