"""Stack samples: py-spy from outside the process, or a thread inside it if py-spy is refused."""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType

from .. import facts
from ..control import Request
from ..gradient_use import GradientUse
from ..wire import IN_PROCESS, PY_SPY, stacks_file
from .switched import Capture

RATE_HZ = 100
MOST_RANKS = 8  # py-spy stops each process for each sample in turn; heuristic


def root_of_samples() -> int:
    """The process that is sampled with its descendants: this one; or the parent of all ranks,
    because the rank that the others wait for will be judged (evidence/from_run/ranks_of_run.py)."""
    _, _, local = facts.ranks()
    parent = os.getppid()
    if not 1 < local <= MOST_RANKS:
        return os.getpid()
    try:
        program = os.path.basename(os.readlink(f"/proc/{parent}/exe"))
    except OSError:
        return os.getpid()
    return parent if program.startswith("python") else os.getpid()  # mpirun has no Python stacks


class SampleCapture(Capture):
    """Asks the parent for py-spy through ``control/``; the steps go on without a pause."""

    slow_start = True

    def start(self) -> str:
        self.inside: InProcessSampler | None = None
        self.gradients: GradientUse | None = None
        self.request = Request(self.probe.run_dir, self.window, PY_SPY)
        if self.probe.config.get("sampler") == IN_PROCESS:
            self._fall_back("in-process sampling was asked for")
        else:
            self.request.ask(str(root_of_samples()))
        return ""

    def ready(self) -> bool:
        if self.inside is not None:
            return True
        if self.request.attached():
            return True
        if why := self.request.refused():
            self._fall_back(why)
        return self.inside is not None

    def begin(self) -> None:
        look = self.windows.inspection
        optimizers = [o for o in (known() for known in look.optimizers.values()) if o is not None]
        models = [module for _, module in look.alive()]
        self.gradients = GradientUse(self.probe, self.windows.boundary, optimizers, models)
        self.probe.guard(self.gradients.begin)()
        if self.inside is not None:
            self.inside.start()

    def end(self, steps: int) -> None:
        self._end_gradients()
        if self.inside is not None:
            self.inside.stop(os.path.join(self.probe.run_dir, stacks_file(os.getpid())))
        else:
            self.request.end()

    def abort(self) -> None:
        self._end_gradients()
        if self.inside is None:
            self.request.end()

    def _end_gradients(self) -> None:
        if self.gradients is not None:
            self.probe.guard(self.gradients.end)()
            self.probe.guard(self.gradients.write)()

    def _fall_back(self, why: str) -> None:
        self.request.end()
        self.probe.recorder.write("sampler", source=IN_PROCESS, why=why)
        thread = self.probe.marks.thread or threading.get_ident()
        self.inside = InProcessSampler(thread, lambda: bool(self.boundary.backward_depth))


class InProcessSampler:
    """Reads the training thread's stack at 100 Hz. It needs the interpreter lock for each sample,
    so it misses what happens inside long calls, and it sees no workers. ``in_backward``: the thread
    waits for autograd's threads, which run a device's backward; the Python that they run belongs to
    the training."""

    def __init__(self, thread: int, in_backward: Callable[[], bool] = lambda: False) -> None:
        self.thread, self.in_backward = thread, in_backward
        self.frames: dict[tuple[str, str, int], int] = {}
        self.samples: list[list[int]] = []
        self.running = True
        self.worker = threading.Thread(target=self._run, name="tdiag-sampler", daemon=True)

    def start(self) -> None:
        self.worker.start()

    def stop(self, path: str) -> None:
        """End sampling and write a speedscope file like py-spy's, with its own exporter mark."""
        self.running = False
        self.worker.join()
        names = [{"name": f[0], "file": f[1], "line": f[2]} for f in self.frames]
        profile = {
            "type": "sampled",
            "name": f'Process {os.getpid()} Thread {threading.get_native_id()} "MainThread"',
            "unit": "seconds",
            "startValue": 0.0,
            "endValue": len(self.samples) / RATE_HZ,
            "samples": self.samples,
            "weights": [1 / RATE_HZ] * len(self.samples),
        }
        document = {
            "$schema": "https://www.speedscope.app/file-format-schema.json",
            "profiles": [profile],
            "shared": {"frames": names},
            "activeProfileIndex": 0,
            "exporter": f"tdiag {IN_PROCESS}",
            "name": IN_PROCESS,
        }
        with open(path, "w", encoding="utf-8") as file:
            json.dump(document, file)

    def _run(self) -> None:
        while self.running:
            frames = sys._current_frames()
            stack = self._stack(frames.get(self.thread))
            if stack and self.in_backward():
                stack += next((s for f in _of_autograd(frames) if (s := self._stack(f))), [])
            if stack:
                self.samples.append(stack)
            time.sleep(1 / RATE_HZ)

    def _stack(self, frame: FrameType | None) -> list[int]:
        """Numbers of its frames, the outermost first."""
        stack: list[int] = []
        while frame is not None:
            code = frame.f_code
            key = (code.co_name, code.co_filename, frame.f_lineno or 0)
            stack.append(self.frames.setdefault(key, len(self.frames)))
            frame = frame.f_back
        return stack[::-1]


def _of_autograd(frames: dict[int, FrameType]) -> list[FrameType]:
    """The frames of threads that Python has not started."""
    known = {
        thread.ident
        for thread in threading.enumerate()
        if not isinstance(thread, threading._DummyThread)
    }
    return [frame for thread, frame in frames.items() if thread not in known]
