"""cProfile on the training thread."""

from __future__ import annotations

import cProfile
import os
import sys
import threading
from typing import Any

from .. import accelerator
from ..wire import CPROFILE
from .switched import ProfileCapture

MOST_ROWS = 300  # rows kept in the events; cprofile.pstats keeps them all
ALWAYS = {
    "checkpoint",
    "clip_grad_norm_",
    "clip_grad_value_",
}  # always kept, even if they take little time


class CallsCapture(ProfileCapture):
    """Own and total time of every Python function called in the window's steps."""

    def begin(self) -> None:
        self.profile = cProfile.Profile()
        self.profile.enable()
        monitoring = getattr(sys, "monitoring", None)  # since Python 3.12
        if monitoring and (accelerator.kind() or threading.active_count() > 1):
            keep_to_thread(monitoring, threading.get_ident())
        self.give_way_to_script()

    def end(self, steps: int) -> None:
        self.patches.undo()
        if self.lost:
            self.skipped(self.lost)
            return
        self.profile.disable()
        if not steps:
            return  # the program ended within the first one
        rows: list[list[Any]] = []
        for entry in self.profile.getstats():
            code = entry.code
            place = (
                ["", 0, code] if isinstance(code, str)
                else [code.co_filename, code.co_firstlineno, code.co_name]
            )  # fmt: skip
            rows.append(
                [*place, entry.callcount, int(entry.inlinetime * 1e9), int(entry.totaltime * 1e9)]
            )
        rows.sort(key=lambda row: -row[4])
        total = sum(row[3] for row in rows)
        rows = rows[:MOST_ROWS] + [row for row in rows[MOST_ROWS:] if row[2] in ALWAYS]
        self.probe.recorder.write(
            "calls", steps=steps, rows=rows, total=total, **{"pass": self.window.number}
        )
        self.profile.dump_stats(os.path.join(self.probe.run_dir, CPROFILE))

    def abort(self) -> None:
        self.patches.undo()
        profile = getattr(self, "profile", None)
        if profile is not None:
            profile.disable()


def keep_to_thread(monitoring: Any, thread: int) -> None:
    """From Python 3.12 on cProfile sees the calls of all threads and mixes them up: a pinning
    thread, or autograd's thread for a device, would end the calls of the training thread."""

    def kept(callback: Any) -> Any:
        def only_here(*args: Any) -> Any:
            return callback(*args) if threading.get_ident() == thread else None

        return only_here

    tool = monitoring.PROFILER_ID
    for event in vars(monitoring.events).values():
        if event and event & (event - 1) == 0:  # one event, not several at once
            callback = monitoring.register_callback(tool, event, None)
            if callback is not None:
                monitoring.register_callback(tool, event, kept(callback))
