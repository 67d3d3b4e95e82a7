"""cProfile on the training thread."""

from __future__ import annotations

import cProfile
import os
import sys
from typing import Any

from .. import facts
from ..wire import CPROFILE
from .base import Capture

MOST_ROWS = 300  # rows kept in the events; cprofile.pstats keeps them all
ALWAYS = {"checkpoint", "clip_grad_norm_", "clip_grad_value_"}  # kept however little they take


class CallsCapture(Capture):
    """Own and total time of every Python function called in the window's steps."""

    def start(self) -> str:
        owner = facts.tracer_name(sys.getprofile())
        return f"the script profiles itself ({owner})" if owner else ""

    def begin(self) -> None:
        self.profile = cProfile.Profile()
        self.profile.enable()
        # sys.setprofile has one owner: if the script profiles itself, ours ends.
        self.give_way(cProfile.Profile, "enable", "the script profiles itself (cProfile)")
        self.give_way(sys, "setprofile", "the script profiles itself (sys.setprofile)")

    def end(self, steps: int) -> None:
        self.patches.undo()
        if self.lost:
            self.skipped(self.lost)
            return
        self.profile.disable()
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
