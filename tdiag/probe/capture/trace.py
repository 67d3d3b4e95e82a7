"""torch.profiler over a few steps, as a Chrome trace for TensorBoard and for tdiag."""

from __future__ import annotations

import contextlib
import cProfile
import os
import re
import socket
import sys
import tempfile
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch

from .. import accelerator, facts
from ..collectives import let_go
from ..core import now_ns
from ..wire import BY_CPROFILE, TENSORBOARD
from .switched import Capture

if TYPE_CHECKING:
    from ..plan import PlannedWindow
    from ..windows import Windows


# "USDT:2026-11-21 13:00:31 10170:10170 SyncActivityProfilerHandler.cpp:52] profiler_start"
# "ERROR: External init callback must run in same thread as registerClient (… != …)"
_KINETO = re.compile(
    rb"^(?:[A-Z]+:\d{4}-\d\d-\d\d [\d:]+ \d+:\d+ \w+\.(?:cpp|h):\d+\]"
    rb"|ERROR: External init callback must run in same thread).*\n?",
    re.M,
)


# Kineto's levels that are no fault.
_INFORMATION = (b"USDT:", b"VERBOSE:", b"INFO:", b"STAGE:")
MOST_MESSAGES, LONGEST_MESSAGE = 20, 300


@contextlib.contextmanager
def kineto_unheard(faults: list[str]) -> Iterator[None]:
    """Capture file descriptor 2 for a few milliseconds; everything that is not Kineto's passes
    through. Kineto's reports of faults (CUPTI is missing, another tool holds it) are added to
    ``faults``.

    An environment variable (KINETO_LOG_LEVEL) would also silence the script's own profiler.
    """
    with tempfile.TemporaryFile() as held, contextlib.suppress(OSError):
        if sys.stderr is not None:
            sys.stderr.flush()
        real = os.dup(2)
        os.dup2(held.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(real, 2)
            held.seek(0)
            said = held.read()
            _add_faults(faults, _KINETO.findall(said))
            if rest := _KINETO.sub(b"", said):
                os.write(real, rest)
            os.close(real)


def _add_faults(faults: list[str], lines: list[bytes]) -> None:
    for line in lines:
        text = line.decode(errors="replace").strip()[:LONGEST_MESSAGE]
        if line.startswith(_INFORMATION) or len(faults) >= MOST_MESSAGES:
            continue
        without_time = text.partition("] ")[2] or text
        if not any(known.endswith(without_time) for known in faults):
            faults.append(text)


# Keeps a trace readable and quick to write: about 100 bytes per event, so 60 MB at most.
MOST_EVENTS = 600_000
# Python stacks add one event per call; used only if a step is small enough.
MOST_EVENTS_WITH_STACKS = 30_000
OWN_PROFILER = "the script runs its own torch profiler"
_seen_per_step: dict[str, int] = {}


class TraceCapture(Capture):
    """Records ``ProfilerStep#n`` spans like ``torch.profiler``'s own schedule does.

    All ranks trace the same steps, with (``stacks``) or without Python's; if the lead has not
    announced it, this process is the lead.
    """

    def __init__(self, windows: Windows, window: PlannedWindow, stacks: bool | None = None) -> None:
        super().__init__(windows, window)
        self.stacks = stacks

    def start(self) -> str:
        if facts.profiler_is_on() or self.probe.profiler_prepared:
            return OWN_PROFILER
        if owner := facts.monitored_by():  # it would miss returns from here on (torch 2.13)
            return f"the script profiles itself ({owner})"
        if torch._C._current_graph_task_id() != -1:
            return "the steps end inside a backward pass, where no profiler can be switched"
        self.steps_left = self.window.steps
        self.leads = leads = self.stacks is None
        if leads and (per_step := _seen_per_step.get("events")):
            if per_step > MOST_EVENTS:
                return f"one step has {per_step} events: the first pass's trace is used"
            self.steps_left = max(1, min(self.steps_left, MOST_EVENTS // per_step))
            self.stacks = per_step < MOST_EVENTS_WITH_STACKS
        stacks = bool(self.stacks)
        self.faults: list[str] = []  # faults that Kineto reports
        activities = [torch.profiler.ProfilerActivity.CPU]
        self.of_device = accelerator.activity()
        if self.of_device is not None:
            activities.append(self.of_device)
        self.profiler: Any = torch.profiler.profile(
            activities=activities, record_shapes=True, with_stack=stacks
        )
        with kineto_unheard(self.faults):
            self.profiler.prepare_trace()
        self.prepared, self.recording = True, False
        self._watch_for_another()
        self.span: Any = None
        self.began_ns = 0
        if leads:
            self.windows.joint.announce(self.window.number, self.steps_left, stacks)
        return ""

    def _watch_for_another(self) -> None:
        """Two Kineto sessions cannot nest: if the script prepares or starts one, tdiag's ends. Nor
        can a trace run together with a cProfile from Python 3.12 on."""
        for name in ("_prepare_profiler", "_enable_profiler"):
            self.give_way(torch.autograd.profiler, name, OWN_PROFILER)
        if hasattr(sys, "monitoring"):
            self.give_way(cProfile.Profile, "enable", BY_CPROFILE)

    def ready(self) -> bool:
        return bool(self.lost) or self.windows.joint.ready()

    def begin(self) -> None:
        self.patches.undo()  # the next start is tdiag's own
        if facts.profiler_is_on():
            self.lost = self.lost or OWN_PROFILER
        if self.lost:
            return
        let_go()
        with kineto_unheard(self.faults):
            self.profiler.start_trace()
        self.recording = True
        self.began_ns = now_ns()
        self._watch_for_another()
        self._next_span()

    def step(self) -> None:
        if self.lost:
            return
        self._close_span()
        self.steps_left -= 1
        if self.steps_left > 0:
            self._next_span()

    def end(self, steps: int) -> None:
        self.patches.undo()
        if self.lost:
            self.skipped(self.lost)
            return
        self._close_span()
        let_go()
        with kineto_unheard(self.faults):
            self.profiler.stop_trace()
        self.prepared = self.recording = False
        done = self.window.steps - max(0, self.steps_left)
        results = self.profiler.profiler.kineto_results
        events = len(results.events()) if results is not None else 0
        _seen_per_step["events"] = max(1, events // max(1, done))
        worker = f"{socket.gethostname()}_{os.getpid()}"
        name = f"{TENSORBOARD}/{worker}.{time.time_ns()}.pt.trace.json"
        path = os.path.join(self.probe.run_dir, name)
        os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
        with kineto_unheard(self.faults):
            self.profiler.export_chrome_trace(path)
        self.probe.recorder.write(
            "trace",
            file=name,
            steps=done,
            events=events,
            t=self.began_ns,
            device=self.of_device is not None,
            faults=self.faults,
            **{"pass": self.window.number},
        )

    def abort(self) -> None:
        self.patches.undo()
        self._close_span()
        if self.leads:
            self.windows.joint.agreement.withdraw()
        prepared, self.prepared = self.prepared, False
        if not prepared or (facts.profiler_is_on() and not self.recording):
            return  # the active profiler is the script's
        let_go()
        with kineto_unheard(self.faults):
            if not self.recording:
                self.profiler.start_trace()  # only this makes Kineto leave its prepared state
            self.profiler.stop_trace()
        self.recording = False

    def _next_span(self) -> None:
        self.span = torch.profiler.record_function(f"ProfilerStep#{self.probe.step}")
        self.span.__enter__()

    def _close_span(self) -> None:
        if self.span is not None:
            self.span.__exit__(None, None, None)
            self.span = None
