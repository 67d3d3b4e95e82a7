"""Python's garbage collector is off."""

import gc
from typing import Any

from ...patches import hidden
from ..change import CEILING, SAME, Change, Trial, switch

NAME = "ceiling.gc"


def install(trial: Trial, value: bool) -> None:
    def off() -> None:
        gc.collect()
        gc.disable()
        trial.patches.set(gc, "collect", hidden(collect))
        trial.patches.set(gc, "enable", hidden(nothing))
        trial.applied(NAME, "no collections after warm-up")

    trial.probe.when_warm(off)


def collect(*args: Any) -> int:
    return 0


def nothing() -> None:
    pass


CHANGE = Change(
    name=NAME,
    does="Python's garbage collector is off, gc.collect() included.",
    safety=SAME,
    kind=CEILING,
    rare=True,
    parse=switch,
    absent="the script ended while warming up",
    limits="memory in reference cycles is not freed",
    install=install,
)
