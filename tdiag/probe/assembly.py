"""Assembles the probe of one process: its core, the watchers of the training, the windows.

An import goes only down this list: assembly, captures, windows, watchers (loaders, phases, saves,
collectives, inspection), boundary, facts, device, core, wire. Files reach those above through
callbacks that are set here. A test (tests/test_architecture.py) finds every import cycle.
"""

from __future__ import annotations

import atexit
import os
from collections.abc import Callable
from typing import NamedTuple

from torch.utils.data import get_worker_info

from . import existing, facts
from .boundary import Boundary
from .capture import make_capture, watch_fetches
from .capture.sample import root_of_samples
from .collectives import CollectiveWatch
from .core import Probe
from .inspection import Inspection
from .late_windows import LateWindows
from .loaders import LoaderWatch
from .patches import hide_from_dynamo, install_filter
from .phases import ModuleWatch
from .saves import SaveWatch
from .started import ProcessWatch
from .trial.install import install as install_trial
from .windows import Windows
from .wire import CONTROL, KERNEL, OVER

_parts: list[Callable[[], None]] = []  # functions that end the watching of a cell
_idle: list[Callable[[], None]] = []  # that end a visit of a process that does not train


class Visited(NamedTuple):
    """A process that runs already. ``over``: called after the visit, with the number of steps it
    lasted. ``boundary``, ``loaders``: of the probe that has watched it before, None without one."""

    over: Callable[[int], None]
    boundary: Boundary | None = None
    loaders: LoaderWatch | None = None


def install(run_dir: str, *times: int, visited: Visited | None = None) -> None:
    """Install every hook. A hook that fails to install is recorded and left out."""
    probe = Probe(run_dir, *times)
    unfilter = install_filter().undo
    facts.write_process(probe)
    boundary = Boundary(probe)
    inspection = Inspection(probe, boundary)
    windows = Windows(probe, boundary, inspection, make_capture)
    probe.between_steps = windows.between_steps
    loaders = LoaderWatch(probe, boundary, windows.iterator)
    loaders.make_inputs = watch_fetches
    boundary.began_again = probe.guard(windows.restart)
    boundary.made = inspection.made
    modules = ModuleWatch(probe, boundary, inspection)
    for watcher in (
        boundary,
        inspection,
        loaders,
        modules,
        SaveWatch(probe, boundary, modules),
        CollectiveWatch(probe, boundary),
        ProcessWatch(probe),
    ):
        probe.guard(watcher.install)()
    probe.guard(facts.watch_profiler)(probe)
    probe.guard(install_trial)(probe, boundary)
    probe.guard(hide_from_dynamo)(__name__.rpartition(".")[0])
    if probe.config.get(KERNEL) and get_worker_info() is None:
        if visited and visited.loaders:
            probe.guard(loaders.take_over)(visited.loaders)
        probe.guard(existing.adopt)(boundary, inspection, loaders, visited and visited.boundary)
    probe.marks.watch_gc()
    os.register_at_fork(after_in_child=probe.after_fork)
    os.register_at_fork(after_in_child=windows.leave)
    atexit.register(windows.at_exit)

    def remove() -> None:
        if probe.training:
            probe.guard(windows.finish)("exit")
        atexit.unregister(windows.at_exit)
        probe.detach()
        if not (visited and visited.loaders):
            probe.guard(existing.let_go)()
        unfilter()
        facts.allow_sampling(by=0)
        probe.guard(write_over)(run_dir)

    def end_visit() -> None:
        if (idle := leave_if_idle) in _idle:
            _idle.remove(idle)
        remove()
        assert visited is not None
        visited.over(probe.step)

    def leave_if_idle() -> None:
        if not probe.training:
            end_visit()

    def visit(there: str, over: Callable[[int], None]) -> None:
        install(there, visited=Visited(over, boundary, loaders))

    if visited:
        if visited.boundary:
            probe.marks.mine()  # the first thread to ask is the one that trains
        else:
            loaders.left = end_visit  # nothing of the probe stays in a worker either
        probe.go_on = end_visit
        _idle.append(leave_if_idle)
    else:
        probe.go_on = LateWindows(probe, boundary, root_of_samples, visit).start
        _parts.append(remove)


def write_over(run_dir: str) -> None:
    """Workers that outlive the cell or the visit find this file, and measure no more."""
    with open(os.path.join(run_dir, CONTROL, OVER), "wb"):
        pass


def leave_idle() -> None:
    """A visit is over, and this process may have made no step, whose end would have ended it."""
    for action in _idle.copy():  # each takes itself off
        action()


def leave() -> None:
    """The watched notebook cell has ended. Only callbacks for a fork stay in its kernel, and they
    do nothing then."""
    while _parts:
        _parts.pop()()
