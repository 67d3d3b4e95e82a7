"""One of the user's functions returns its earlier result."""

from typing import Any

from ..change import CEILING, TRAINING, Change, Trial, function
from ..frozen import freeze_by_name

NAME = "freeze"


def install(trial: Trial, value: Any) -> None:
    freeze_by_name(trial, NAME, value)


CHANGE = Change(
    name=NAME,
    does="One of your functions returns its earlier result.",
    safety=TRAINING,
    kind=CEILING,
    takes="FILE.py:FUNCTION",
    parse=function,
    absent="no such function, or it was not called",
    limits="does not apply if the result carries gradients or training steps happen inside, to a"
    " generator, or to a function not written in Python; its side effects are left out, too",
    install=install,
)
