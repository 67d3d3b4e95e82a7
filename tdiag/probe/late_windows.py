"""Times a few steps now and then in a run that goes on after its windows, to see whether they get
slower.

A late window lasts ``LATE_STEPS`` steps and becomes one record. The next one comes when the run has
lasted a twentieth longer, so an hour makes 84 of them and a day 149, however many steps they have.
Between them all hooks rest except two: an optimizer's ``step`` is counted, and iterators of
DataLoaders are numbered. Whenever the run has lasted twice as long, py-spy samples it between two
late windows, to find the lines. `tdiag attach` may ask for another whole pass (:mod:`.visits`).
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data.dataloader import _BaseDataLoaderIter

from . import accelerator, dynamo, facts
from .boundary import OPTIMIZER
from .control import Request
from .patches import Patch
from .plan import PlannedWindow
from .procfs import resident_bytes
from .record import here, wall_ns
from .visits import Visits
from .wire import DIAGNOSE, FIRST_LATE_PASS, KERNEL, PY_SPY, SAMPLE

if TYPE_CHECKING:
    from .boundary import Boundary
    from .core import Probe

LATE_STEPS = 8  # the shortest of them counts, because disturbances only make a step longer
APART_FRAC, LEAST_APART_NS = 1 / 20, 100_000_000  # of the run so far
SAMPLE_NS, LOOK_NS = 4_000_000_000, 200_000_000  # as long as the window `sample`
ASKED_NS = 1_000_000_000  # `tdiag attach` waits for the answer
# Three values per mark. Steps with hundreds of module calls fill a record sooner; a single step
# that is several times as large is not worth its 100 kB.
ENOUGH_VALUES, MOST_VALUES = 6_000, 20_000
# Not replaced where dynamo looks: it compiles the calls of modules and the collectives, and may
# recompile them when they are replaced again.
UNCOMPILED = (torch.Tensor, torch.autograd, torch, torch.serialization, _BaseDataLoaderIter)


class LateWindows:
    """One per process; each rank has its own. Nothing here waits for the device or another rank."""

    def __init__(
        self, probe: Probe, boundary: Boundary, root: Callable[[], int],
        visit: Callable[[str, Callable[[int], None]], None],
    ) -> None:  # fmt: skip
        """``root``: returns the process that py-spy should sample with its descendants. ``visit``:
        see :class:`Visits`."""
        self.probe, self.boundary = probe, boundary
        self.sampler = LateSampler(probe, root)
        self.visits = Visits(probe.run_dir, visit)
        self.paused: list[Patch] = []  # hooks off during a visit
        self.made_ns = wall_ns()
        self.thread = 0  # the thread that trains
        self.lead: int | None = None  # the optimizer whose steps are counted
        self.steps = 0  # counted since the last late window, or seen in this one
        self.due_ns = self.rested_ns = 0
        self.look_at = 0  # the clock is read after this many steps
        self.settled = False  # the first step of the window was left out
        self.start = self._or_leave(self._start)
        self.begin = self._or_leave(self._begin)
        self.step_ended = self._or_leave(self._step_ended)
        self.left = self._or_leave(self._left)

    def _start(self) -> None:
        """The windows are over. Steps that no optimizer ends, or only a replayed graph, are not
        counted; and nothing stays in a notebook's kernel."""
        probe, boundary = self.probe, self.boundary
        counted = boundary.rank == OPTIMIZER and not (boundary.divided or len(boundary.graphs))
        diagnosed = probe.config.get("plan", DIAGNOSE) == DIAGNOSE
        if not counted or not diagnosed or probe.config.get(KERNEL):
            probe.detach()
            return
        probe.end_discovery()
        probe.finished = True
        probe.between_steps = self.step_ended
        self.thread, self.lead = here(), boundary.lead
        self.sampler.last_ns = wall_ns() - self.made_ns
        self.rest()

    def rest(self) -> None:
        """Until the next late window is due."""
        probe, now = self.probe, wall_ns()
        probe.patches.rest()
        probe.marks.unwatch_gc()
        probe.marks.never()
        probe.recorder.flush()
        self.steps = self.look_at = 0
        self.rested_ns = now
        self.due_ns = now + max(LEAST_APART_NS, int((now - self.made_ns) * APART_FRAC))
        self.sampler.ask_if_due(now - self.made_ns)
        probe.count = self.count

    def count(self, optimizer: Any) -> None:
        """An optimizer has stepped: this is all the work between two late windows."""
        if id(optimizer) != self.lead or here() != self.thread:
            return
        self.steps += 1
        if self.steps >= self.look_at:
            self.begin()

    def _begin(self) -> None:
        """A step has ended: put the hooks back on, if it is time. The clock is read after half of
        the remaining steps or a second, whichever comes first."""
        left, asked = self.due_ns - wall_ns(), self.visits.asked()
        if left > 0 and asked is None:
            each = (self.due_ns - left - self.rested_ns) / self.steps
            self.look_at = self.steps + max(1, int(min(left / 2, ASKED_NS) / each))
            return
        if accelerator.capturing():
            return
        if self.sampler.busy():  # py-spy slows the steps down
            self.due_ns, self.look_at = max(self.due_ns, wall_ns() + LOOK_NS), 0
            return
        if asked is not None:
            self._receive(asked)
            return
        probe, marks = self.probe, self.probe.marks
        probe.count = None
        probe.step += self.steps
        self.steps, self.settled = 0, False
        compiled = dynamo.compiled_frames() > 0
        if compiled and probe.ranks > 1:  # waiting for other ranks would look like work
            probe.detach()
            return
        probe.patches.resume(lambda owner: owner in UNCOMPILED or not compiled)
        marks.watch_gc()
        marks.begin_unclocked()
        marks.due_ns = 0
        marks.thread = self.thread
        self.boundary.others.clear()
        self.boundary.passes = 0
        marks.cut(wall_ns())

    def _receive(self, asked: dict[str, Any]) -> None:
        """Let another probe measure one pass of windows, and leave it alone meanwhile."""
        probe = self.probe
        probe.count = None
        probe.step += self.steps
        self.paused = probe.patches.pause()
        if not self.visits.receive(asked, self.left):
            self.left(0)

    def _left(self, steps: int) -> None:
        """A visit of so many steps is over."""
        self.probe.patches.put_back(self.paused)
        self.probe.step += steps
        facts.allow_sampling()
        self.rest()

    def _step_ended(self, now: int) -> None:
        """A step has ended in a late window."""
        marks = self.probe.marks
        if not self.settled:  # the first step pays for the hooks' cold caches
            self.settled = True
            marks.cut(wall_ns())
            return
        self.steps += 1
        values = len(marks.log)
        if self.steps < LATE_STEPS and values < ENOUGH_VALUES:
            return
        if values <= MOST_VALUES:
            self._write(now)
        if values > MOST_VALUES or self.boundary.lead != self.lead:
            self.probe.detach()
        else:
            self.rest()

    def _or_leave(self, function: Callable[..., None]) -> Callable[..., None]:
        """After a fault, no hook may stay whose marks nothing collects."""

        @functools.wraps(function)
        def guarded(*args: Any) -> None:
            try:
                function(*args)
            except Exception as error:
                self.probe.failed(getattr(function, "__qualname__", "?"), error)
                self.probe.detach()

        return guarded

    def _write(self, ended: int) -> None:
        marks = self.probe.marks
        self.probe.recorder.write(
            "late",
            i=self.probe.step - self.steps,
            n=self.steps,
            s=marks.start,
            t=ended,
            resident=resident_bytes(),
            compiles=dynamo.compiles(),
            m=marks.cut(ended),
        )


class LateSampler:
    """Asks the parent for py-spy whenever the run has lasted twice as long as at the last time."""

    def __init__(self, probe: Probe, root: Callable[[], int]) -> None:
        self.probe, self.root = probe, root
        self.number = FIRST_LATE_PASS
        self.last_ns = 0  # the age of the run
        self.request: Request | None = None
        self.since_ns = 0  # when py-spy began to sample; 0: not yet

    def ask_if_due(self, age_ns: int) -> None:
        """For the lead, which asks for all ranks of its machine."""
        probe = self.probe
        if age_ns < 2 * self.last_ns or not probe.leads or probe.config.get("sampler") != PY_SPY:
            return
        self.last_ns, self.since_ns = age_ns, 0
        window = PlannedWindow(SAMPLE, self.number, 0, 0.0, 0.0)
        self.number += 1
        self.request = Request(probe.run_dir, window, PY_SPY)
        self.request.ask(str(self.root()))

    def busy(self) -> bool:
        """Whether py-spy was sampling until now; ends it when it has sampled long enough."""
        if self.request is None:
            return False
        now = wall_ns()
        if not self.since_ns and self.request.attached():
            self.since_ns = now
        if self.request.refused() or 0 < self.since_ns <= now - SAMPLE_NS:
            self.request.end()
            self.request = None
        return True
