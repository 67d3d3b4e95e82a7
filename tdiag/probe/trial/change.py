"""What a change is, and the state that all changes of one process share."""

from __future__ import annotations

import multiprocessing
import os
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from ..wire import BASELINE, is_user_file

if TYPE_CHECKING:
    from ..boundary import Boundary
    from ..core import Probe

# How safe: the same numbers come out; the same, except for samples that draw random numbers; they
# differ by rounding; the training changes.
SAME, DRAWS = "same numbers", "same numbers but random ones"
ROUNDING, TRAINING = "changed rounding", "changed training"
FIX, CEILING = "fix", "ceiling"
# A few times the duration of a group's turns (tdiag/trial/measure.py): rarer events hardly occur in
# them.
SETTLE_MOST_S = 15.0
MOST_SAID = 20  # records of all changes in one process


class Change(NamedTuple):
    """``name``: as ``tdiag try --set`` takes it. ``does``: one sentence. ``kind``: a fix could be
    kept; a ceiling leaves out a part of the step to measure its cost. ``takes``: the value after
    ``=``, "" for a switch. ``absent``: why it did not apply, if nothing else is known. ``limits``:
    what it does not do, or breaks. ``edit``: what makes it permanent. ``rare``: it affects only
    some steps, or some scripts.

    ``parse`` turns the text after ``=`` into the value and raises ValueError; it runs in both
    processes. ``environment`` returns variables for the start of the program; ValueError if that is
    impossible on this machine. ``install`` runs in the user's process after ``import torch``.
    """

    name: str
    does: str
    safety: str
    absent: str
    install: Callable[[Trial, Any], None]
    limits: str = ""
    edit: str = ""
    takes: str = ""
    kind: str = FIX
    rare: bool = False
    parse: Callable[[str], Any] = str
    environment: Callable[[str], dict[str, str]] = lambda text: {}


class Trial:
    """``shared``: state that several changes share. ``waits``: by change; the process is not
    measured until all of them are true, or for ``SETTLE_MOST_S``."""

    def __init__(self, probe: Probe, boundary: Boundary) -> None:
        self.probe, self.boundary, self.patches = probe, boundary, probe.patches
        self.shared: dict[str, Any] = {}
        self.waits: dict[str, Callable[[], bool]] = {}
        self.answered: dict[str, int] = {}  # change → calls it answered in measured steps
        self.backwards = 0
        self._said: set[tuple[str, str, str, str]] = set()
        self._asked_s = 0.0
        probe.settled = self.settled

    def applied(self, name: str, what: str, place: Any = None, variable: str = "") -> None:
        """The change has changed something. ``place``: the user's line that made it, as
        :func:`..places.caller` returns it; ``variable``: its name there."""
        self._say(name, "applied", what, place, variable)

    def sets(self, name: str, what: str) -> None:
        """The change has set something for the whole script (line 0); the first of its processes
        reports it."""
        if multiprocessing.parent_process() is None:
            self._say(name, "applied", what, _script())

    def refused(self, name: str, why: str, place: Any = None) -> None:
        """The change had something to change and did not."""
        self._say(name, "refused", why, place)

    def answer(self, name: str) -> None:
        """A call was answered without running it."""
        if self.probe.window == BASELINE:
            self.answered[name] = self.answered.get(name, 0) + 1

    def settled(self) -> bool:
        """Whether all changes are in full effect."""
        now = time.monotonic()
        self._asked_s = self._asked_s or now
        open_ = [name for name, done in self.waits.items() if not done()]
        if not open_:
            return True
        if now - self._asked_s < SETTLE_MOST_S:
            return False
        for name in open_:
            self._say(name, "unsettled", f"not in full effect after {SETTLE_MOST_S:g} s")
        return True

    def _say(self, name: str, state: str, what: str, place: Any = None, variable: str = "") -> None:
        key = name, state, what, str(place)
        if key not in self._said and len(self._said) < MOST_SAID:
            self._said.add(key)
            self.probe.recorder.write(
                "trial", change=name, state=state, what=what, at=place, variable=variable
            )
            self.probe.recorder.flush()

    def write_answers(self) -> None:
        for name, number in self.answered.items():
            self.probe.recorder.write("trial", change=name, state="answered", n=number)


def at(place: Any) -> str:
    """`` at train.py:12`` for a place from :func:`..places.caller`; "" if only libraries called."""
    return f" at {place[0].rpartition('/')[2]}:{place[1]}" if place else ""


def _script() -> Any:
    """The script as a place; None if the program is not one of the user's files."""
    file = getattr(sys.modules.get("__main__"), "__file__", None)
    return [os.path.abspath(file), 0, "<module>"] if file and is_user_file(file) else None


def number(least: int) -> Callable[[str], int]:
    """A parser of whole numbers from ``least`` on."""

    def parse(text: str) -> int:
        value = int(text) if text.strip().isdigit() else -1
        if value < least:
            raise ValueError(f"takes a whole number from {least} on")
        return value

    return parse


def switch(text: str) -> bool:
    """The parser of a change without a value."""
    if text not in ("", "on"):
        raise ValueError("takes no value")
    return True


def off(text: str) -> bool:
    """The parser of a change that switches something off."""
    return switch("" if text == "off" else text)


def function(text: str) -> str:
    """``FILE.py:FUNCTION``, or a dotted name, of one of the user's functions."""
    file, colon, name = text.rpartition(":")
    right = file.endswith(".py") and name.replace(".", "a").isidentifier() if colon else "." in name
    if not right:
        raise ValueError("takes FILE.py:FUNCTION, FILE.py:Class.method or module.function")
    return text


def function_or_nothing(text: str) -> str:
    return function(text) if text else ""
