"""The base of every capture: the windows switch it on and off at step boundaries."""

from __future__ import annotations

import cProfile
import functools
import sys
from typing import TYPE_CHECKING, Any

from .. import facts
from ..core import now_ns
from ..patches import Patches, hidden
from ..wire import BY_CPROFILE

if TYPE_CHECKING:
    from ..plan import PlannedWindow
    from ..windows import Windows


class Capture:
    """``start`` (may take time) → ``ready``? → ``begin`` → ``step``… → ``end`` or ``abort``."""

    slow_start = False  # switching it on delays the process, so settle again once it is ready

    def __init__(self, windows: Windows, window: PlannedWindow) -> None:
        self.windows, self.window = windows, window
        self.probe, self.boundary = windows.probe, windows.boundary
        self.inspection = windows.inspection
        self.patches = Patches()  # in place only while this capture is on
        self.lost = ""  # why it ended early: the script started its own profiler

    def give_way(self, owner: Any, name: str, why: str) -> None:
        """While this capture is on, a call of ``owner.name`` first ends it and then proceeds."""
        original = getattr(owner, name)

        @functools.wraps(original)
        def first_we_leave(*args: Any, **kwargs: Any) -> Any:
            if not self.lost:
                self.lost = why
                self.patches.undo()
                self.probe.guard(self.abort)()
            return original(*args, **kwargs)

        self.patches.set(owner, name, hidden(first_we_leave))

    def skipped(self, why: str) -> None:
        """Record that the window captured nothing."""
        self.probe.recorder.write(
            "window", t=now_ns(), name=self.window.name, state="skipped", why=why,
            step=self.probe.step, **{"pass": self.window.number},
        )  # fmt: skip

    def start(self) -> str:
        """Switch on; returns why that is impossible, or an empty string."""
        return ""

    def ready(self) -> bool:
        return True

    def begin(self) -> None:
        """The window begins here."""

    def step(self) -> None:
        """A step of the window ended."""

    def end(self, steps: int) -> None:
        """Switch off, and record the results of ``steps`` steps."""

    def abort(self) -> None:
        """Switch off and keep nothing."""


class ProfileCapture(Capture):
    """One that needs Python's profile function, which has one owner: the script, if it profiles
    itself."""

    def start(self) -> str:
        owner = facts.profiled_by()
        return f"the script profiles itself ({owner})" if owner else ""

    def give_way_to_script(self) -> None:
        """To be called once the capture has taken it."""
        self.give_way(cProfile.Profile, "enable", BY_CPROFILE)
        self.give_way(sys, "setprofile", "the script profiles itself (sys.setprofile)")
