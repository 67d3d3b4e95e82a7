"""Moves through the windows of the plan, at step boundaries, on the training thread.

Names that a step can carry: ``warmup``, the windows of :mod:`.plan`, ``settle`` (excluded: the step
after a pause by tdiag, or while a profiler is being switched on), ``follow`` (another rank leads)
and ``done``.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from . import accelerator, dynamo, facts, plan
from .control import POLL_NS, Joint, StopSign, arrive
from .core import now_ns
from .procfs import ThreadCounters, python_threads_ns
from .wire import (
    BASELINE,
    DONE,
    FOLLOW,
    LONG_STEP_NS,
    RESIDUE,
    SETTLE,
    TRACE,
    TURNS,
    WARMUP,
)

if TYPE_CHECKING:
    from .boundary import Boundary
    from .core import Probe
    from .inspection import Inspection

MOST_SETTLE = 64  # steps excluded after a pause, however deep the queue
# Batches from a pause are used up while new ones arrive: in at most this many times their number of
# steps, 1 ÷ (1 − 3/4), if the loop waits a quarter of its time; one that waits less hardly notices.
SURPLUS_FACTOR = 4.0
# Workers that start together deliver together: a clean window shorter than their round sees a burst
# or a gap. To hold a whole round, it may last up to this many times as long as otherwise.
ROUND_FACTOR = 3.0
# A pass is worth repeating only if the run continues; modules are discovered until then.
DISCOVER_STEPS = 6
LOOK_EVERY_S = 0.05  # as often as the parent answers (launch/process.py)


class Windows:
    """The state machine."""

    def __init__(
        self, probe: Probe, boundary: Boundary, inspection: Inspection, capture: Callable[..., Any]
    ) -> None:
        """``capture``: ``make_capture`` of :mod:`.capture`."""
        self.probe, self.boundary, self.inspection = probe, boundary, inspection
        self.make_capture = capture
        self._advance = probe.guard(self.advance)  # created once: this runs every step
        self.stop = StopSign(probe)
        self.compiled = dynamo.Compiled(probe)
        self.counters: ThreadCounters | None = None
        self.queue: dict[int, int] = {}  # loader → batches its queue can hold
        self.round = 0  # one batch per worker, for the loader with the most workers
        self.filling: int | None = None  # when workers first began to fetch
        self.ahead_ns = 0  # how long they fetched before the first step was seen
        self.epochs: dict[int, list[int]] = {}  # loader → step of each new iterator
        self.changed = False  # tdiag worked between two steps; that time belongs to no step
        self.stop_now = False
        self.finished = False
        self.joint = Joint(probe, lambda window, stacks: capture(self, window, stacks))
        self.restart()

    def restart(self, took: int = 0) -> None:
        """Start over: at the first step boundary, or when a better kind of boundary appears.
        ``took``: duration of the step that ended there, ns."""
        self.leave()
        self.probe.window = WARMUP
        self.on_device = bool(accelerator.kind())
        self.plan = plan.windows(
            self.probe.config, slow=took > plan.SLOW_NS, on_device=self.on_device
        )
        # With long steps none is excluded for warm-up or settling. Loader workers may have filled
        # their queue before the first step; a long step uses up little or nothing of that.
        least = LONG_STEP_NS if any(self.queue.values()) else plan.SLOW_NS
        self.hurried = took > least
        self.window: plan.PlannedWindow | None = plan.warm_up(self.probe.config)
        self.capture: Any = None
        self.began_step = 0
        self.began_ns: int | None = None
        self.first_ns: int | None = None
        self.settle = 0
        self.resettled = False
        self.calm = (now_ns(), self.probe.step)  # until then queues were in their usual state
        self.clean_ns: float | None = None  # mean step of the last clean window on a device
        self.traced = False
        self.residue: float | None = None  # slowdown after a trace, a share of the clean step
        self.step_ns: float | None = None  # last window without a profiler, warm-up included
        self.batches_before = self.boundary.batches
        self.probe.marks.due_ns = 0
        self.epochs = {}
        if self.hurried:  # the first step covers all warm-up
            self._begin(now_ns())
            if self.probe.leads:
                self._next(now_ns())

    def leave(self) -> None:
        """Drop a capture in progress and discard what it saw (a fork, a restart)."""
        self.joint.leave()
        capture, self.capture = getattr(self, "capture", None), None
        if capture is not None:
            self.probe.guard(capture.abort)()

    def iterator(self, number: int, workers: int, each: int) -> None:
        """A loader began a new pass; its queue holds up to ``each`` batches per worker."""
        self.epochs.setdefault(number, []).append(self.probe.step)
        self.queue[number] = workers * each
        self.round = max(self.round, workers)
        if workers and self.filling is None:
            self.filling = now_ns()

    def between_steps(self, now: int) -> None:
        """More is due than the marks of a step. Raises SystemExit if the run is to end."""
        if accelerator.capturing():
            return  # a profiler switched now, or a synchronisation, would break the script's graph
        probe = self.probe
        if not probe.training:
            probe.training = True
            probe.guard(facts.allow_sampling)()
            probe.guard(facts.write_training)(probe)
            probe.guard(self.inspection.settings.write)()
        probe.cut_steps()
        probe.recorder.flush_if_due(now)
        self._advance(now)
        if self.changed:  # tdiag's own work between two windows belongs to no step
            self.changed = False
            probe.marks.cut(now_ns())
        if self.stop_now:
            self.stop.stop()

    def at_exit(self) -> None:
        died = self.probe.guard(facts.write_died)(self.probe)
        if self.probe.training:
            self.probe.guard(self.finish)("error" if died else "exit")
        self.probe.recorder.flush()
        self.stop.at_exit()

    def advance(self, now: int) -> None:
        """A step ended at ``now``: continue, or change windows."""
        if self.began_ns is None:
            self._begin(now)
        if self.finished:
            self.stop_now = self.stop.now()
            return
        if self.probe.step >= DISCOVER_STEPS:
            self.probe.end_discovery()
        elif self.probe.window == WARMUP:
            self.calm = (now, self.probe.step)  # the first steps say nothing about the pace
        if self.stop.due(now, self.first_ns or now, self.probe.step):
            self.finish(self.stop.why)
        elif not self.probe.leads:
            self.probe.window = FOLLOW
            self.changed = self.joint.follow(now) or self.changed
        elif self.probe.window == SETTLE:
            self.settle = max(0, self.settle - 1)
            self._try_to_begin(now)
        else:
            if self.capture is not None:
                self.capture.step()
            if self._complete(now):
                if self.capture is None:
                    self._keep_pace(accelerator.synchronised() or now)
                self._end()
                self._next(now)
            elif self.capture is None and self.stop.steps is None:
                self.probe.marks.due_ns = self._nothing_before(now)

    def finish(self, why: str) -> None:
        """The evidence is complete, or no more will come."""
        if self.finished:
            return
        self.finished = True
        self.probe.cut_steps()
        self.joint.leave()
        self._end(look=why not in ("exit", "error"))
        self.inspection.end()
        self.probe.window = DONE
        self.changed = True
        self.probe.recorder.write("finish", t=now_ns(), why=why, residue=self.residue)
        self.probe.recorder.flush()
        if why in ("exit", "error"):
            return
        self.stop.arrange()
        self.stop_now = self.stop.now()
        if not self.stop.wanted():
            self.probe.go_on()

    def _begin(self, now: int) -> None:
        """The first step has ended."""
        self.began_ns = self.first_ns = now
        self.ahead_ns = now - self.filling if self.filling else 0
        self._look_at_ranks()

    # --- inside --------------------------------------------------------------------------------

    def _complete(self, now: int) -> bool:
        window = self.window
        assert window is not None and self.began_ns is not None
        steps, seconds = self.probe.step - self.began_step, (now - self.began_ns) / 1e9
        if self.on_device and self.step_ns:  # most of them may still be queued
            seconds = max(seconds, steps * self.step_ns / 1e9)
        least, most_s = window.steps, window.most_s
        if window.name == plan.WHOLE_EPOCHS:
            least = max(least, self.round)
            most_s *= ROUND_FACTOR if steps < self.round else 1.0
        if seconds >= most_s and steps >= 1:
            return True
        if window.name == WARMUP:
            batches = self.boundary.batches - self.batches_before
            return steps >= window.steps and batches >= max(self.queue.values(), default=0)
        if steps < least or seconds < window.seconds:
            return False
        if window.name == plan.WHOLE_EPOCHS and window.number == 2:
            epoch = self._epoch_steps()
            fits = epoch * seconds / steps <= window.most_s
            return steps % epoch == 0 or not fits
        return True

    def _keep_pace(self, now: int) -> None:
        """Called when a window without a profiler ends."""
        since, step = self.calm
        if self.probe.step > step:
            self.step_ns = (now - since) / (self.probe.step - step)
        self.calm = (now, self.probe.step)

    def _nothing_before(self, now: int) -> int:
        """The time before which the clean window in progress neither ends nor asks anybody."""
        assert self.window is not None and self.began_ns is not None
        due = self.began_ns + int(self.window.seconds * 1e9)
        steps = self.probe.step - self.began_step
        if self.on_device and self.step_ns and steps:  # launched faster than executed
            wanted = max(self.window.steps, self.window.seconds * 1e9 / self.step_ns)
            due = now + int((wanted - steps) * (now - self.began_ns) / steps)
        return min(now + POLL_NS, due)

    def _epoch_steps(self) -> int:
        """Steps from one new iterator of the busiest loader to the next; 1 if none was seen."""
        starts = max(self.epochs.values(), key=lambda s: s[-1] - s[0], default=[0])
        return max(1, starts[-1] - starts[-2]) if len(starts) > 1 else 1

    def _next(self, now: int) -> None:
        """Open the next window that can be opened."""
        self._look_at_ranks()
        if not self.probe.leads:
            return
        while self.plan:
            self.window = self.plan.pop(0)
            if self.window.name == RESIDUE and not self.traced:
                continue  # a trace that was not recorded leaves nothing behind
            self.capture = self.make_capture(self, self.window)
            if self.capture is not None and (why := self.capture.start()):
                self._record("skipped", why=why)
                self.capture = None
                continue
            self.changed = True
            self.probe.window = SETTLE
            self.settle = 0 if self.hurried else self._settle_steps()
            self.resettled = self.hurried
            if self.hurried:  # excluding a step would cost more than the wait
                while self.capture and self.capture.slow_start and not self.capture.ready():
                    time.sleep(LOOK_EVERY_S)
                self._try_to_begin(now_ns())
            return
        self.window = None
        self.finish("complete")

    def _look_at_ranks(self) -> None:
        """The process group may have been created since torch was imported, or since the last
        check."""
        rank, ranks, _ = facts.ranks()
        if ranks <= self.probe.ranks:
            return
        self.probe.ranks, self.probe.rank = ranks, rank
        # If programs take turns, each rank is held.
        self.probe.leads = rank == 0 or self.probe.config.get("plan") == TURNS
        facts.write_role(self.probe)
        self.probe.guard(arrive)(self.probe)

    def _settle_steps(self) -> int:
        """Number of steps to exclude after a pause, or after a window whose profiler slowed the
        loop: fuller loader queues are used up, and the first step (cold caches) is skipped.

        A loop that waits gets its batches at the pace of its clean steps, so no more batches came
        than fit into the time since then or before the first step. Otherwise queues stay full.
        """
        queued = max(self.queue.values(), default=0)
        if self.step_ns:
            (since, step), done = self.calm, self.probe.step
            surplus = (now_ns() - since) / self.step_ns - (done - step)
            before = self.ahead_ns / self.step_ns * SURPLUS_FACTOR - done
            queued = min(queued, math.ceil(max(surplus * SURPLUS_FACTOR, before, 0)))
        return min(MOST_SETTLE, 1 + queued)

    def _try_to_begin(self, now: int) -> None:
        """Begin the window once the queues are as usual and its profiler is really on."""
        assert self.window is not None
        if self.settle > 0 and not self.boundary.starved:
            return  # an empty queue holds no extra batches
        if self.capture is not None and not self.capture.ready():
            return
        if self.capture is not None and self.capture.slow_start and not self.resettled:
            self.resettled = True  # attaching paused the process
            self.settle = self._settle_steps()
            return
        if done := accelerator.synchronised():  # work launched so far belongs to earlier steps
            now, self.changed = done, True
        self.probe.window = self.window.name
        self.began_step, self.began_ns = self.probe.step, now
        self.calm = (now, self.probe.step)
        self.inspection.settings.begin_window()
        if self.capture is not None:
            self.capture.begin()
            self.changed = True
        self._record("begin")

    def _end(self, look: bool = True) -> None:
        """Close the window in progress; one that had not begun records nothing. ``look``: at a step
        boundary, not while the program ends."""
        capture, self.capture = self.capture, None
        begun = self.window is not None and self.probe.window == self.window.name
        if begun and self.probe.window != WARMUP:
            drained = self._drained() if look else None
            more = {} if drained is None else self._lengths(drained)
            self._record("end", drained=drained, **more)
            self.compiled.write()
        if begun and self.probe.window == BASELINE:
            self.probe.recorder.write(
                "flags", **facts.flags(self.boundary.autocast, self.boundary.scaled)
            )
            self.probe.guard(self.inspection.settings.write)()
            self.probe.guard(self._measure_dispatch)()
            self.changed = True
        if capture is not None:
            self.changed = True
            if begun:
                self.traced = self.traced or self.probe.window == TRACE
                self.probe.guard(capture.end)(self.probe.step - self.began_step)
            else:
                self.probe.guard(capture.abort)()
        if begun and look:
            self.changed = True
            self.probe.guard(self.inspection.look)(self.probe.window)

    def _drained(self) -> int | None:
        """Wait for the device and return how long after the last step that took (ns); None without
        a device. A thousand launches may be queued, so steps without a synchronisation take only as
        long as their launching: the mean is right only with this wait included."""
        done = accelerator.synchronised()
        return done - self.probe.marks.start if done else None

    def _lengths(self, drained: int) -> dict[str, Any]:
        """For a window on a device: its mean step; after a trace also how much longer that is than
        before the trace (a share of the clean step)."""
        assert self.began_ns is not None
        steps = self.probe.step - self.began_step
        mean = (self.probe.marks.start + drained - self.began_ns) / max(1, steps)
        if self.probe.window == BASELINE:
            self.clean_ns = mean
        if self.probe.window == RESIDUE and self.clean_ns:
            self.residue = mean / self.clean_ns - 1
            return {"residue": self.residue}
        return {}

    def _measure_dispatch(self) -> None:
        if torch._C._current_graph_task_id() != -1:
            return  # inside a backward hook
        self.boundary.backward_depth += 1  # tdiag's own backward is not a user step
        try:
            self.probe.recorder.write("dispatch", **facts.measure_dispatch())
        finally:
            self.boundary.backward_depth -= 1

    def _record(self, state: str, **more: Any) -> None:
        assert self.window is not None
        if self.counters is None:
            self.counters = ThreadCounters()
        self.probe.recorder.write(
            "window",
            **self.counters.core_ns(),
            t=now_ns(),
            name=self.window.name,
            state=state,
            step=self.probe.step,
            compiles=dynamo.compiles(),
            threads=python_threads_ns(),
            **accelerator.memory(),
            **{"pass": self.window.number},
            **more,
        )
        self.probe.recorder.flush()
