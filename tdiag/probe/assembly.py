"""Assembles the probe of one process: its core, the watchers of the training, the windows.

An import goes only down this list: assembly, captures, windows, watchers (loaders, phases, saves,
collectives, inspection), boundary, facts, device, core, wire. Files reach those above through
callbacks that are set here. A test (tests/test_architecture.py) finds every import cycle.
"""

from __future__ import annotations

import atexit
import os
from collections.abc import Callable

from . import existing, facts
from .boundary import Boundary
from .capture import make_capture
from .capture.sample import root_of_samples
from .collectives import CollectiveWatch
from .core import Probe
from .inspection import Inspection
from .late_windows import LateWindows
from .loaders import LoaderWatch
from .patches import hide_from_dynamo, install_filter
from .phases import ModuleWatch
from .saves import SaveWatch
from .trial.install import install as install_trial
from .windows import Windows
from .wire import CONTROL, KERNEL, OVER

_parts: list[Callable[[], None]] = []  # functions that end the watching of a cell


def install(run_dir: str, *times: int) -> None:
    """Install every hook. A hook that fails to install is recorded and left out."""
    probe = Probe(run_dir, *times)
    unfilter = install_filter().undo
    facts.write_process(probe)
    boundary = Boundary(probe)
    inspection = Inspection(probe, boundary)
    windows = Windows(probe, boundary, inspection, make_capture)
    probe.between_steps = windows.between_steps
    probe.go_on = LateWindows(probe, boundary, root_of_samples).start
    boundary.began_again = probe.guard(windows.restart)
    boundary.made = inspection.made
    for watcher in (
        boundary,
        inspection,
        LoaderWatch(probe, boundary, windows.iterator),
        ModuleWatch(probe, boundary, inspection),
        SaveWatch(probe),
        CollectiveWatch(probe, boundary),
    ):
        probe.guard(watcher.install)()
    probe.guard(facts.watch_profiler)(probe)
    probe.guard(install_trial)(probe, boundary)
    probe.guard(hide_from_dynamo)(__name__.rpartition(".")[0])
    if probe.config.get(KERNEL):
        probe.guard(existing.adopt)(boundary, inspection)
    probe.marks.watch_gc()
    os.register_at_fork(after_in_child=probe.after_fork)
    os.register_at_fork(after_in_child=windows.leave)
    atexit.register(windows.at_exit)

    def remove() -> None:
        if probe.training:
            probe.guard(windows.finish)("exit")
        atexit.unregister(windows.at_exit)
        probe.detach()
        unfilter()
        facts.allow_sampling(by=0)
        probe.guard(write_over)(run_dir)

    _parts.append(remove)


def write_over(run_dir: str) -> None:
    """Workers that outlive the cell find this file, and measure no more."""
    with open(os.path.join(run_dir, CONTROL, OVER), "wb"):
        pass


def leave() -> None:
    """The watched notebook cell has ended. Only callbacks for a fork stay in its kernel, and they
    do nothing then."""
    while _parts:
        _parts.pop()()
