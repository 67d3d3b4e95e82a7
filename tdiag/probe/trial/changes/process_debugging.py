"""Debugging variables in the environment are off."""

import os

from ...wire import DEBUGGING
from ..change import SAME, Change, Trial, off

NAME = "process.debugging"
CHANGED = "TDIAG_TRIAL_OFF"  # tells the trial's process which variables were on


def environment(text: str) -> dict[str, str]:
    found = {
        name: values[1]
        for name, values in DEBUGGING.items()
        if os.environ.get(name, "") not in values
    }
    if os.environ.get("PYTHONDEVMODE"):
        found["PYTHONDEVMODE"] = ""
    return {**found, CHANGED: " ".join(found)}


def install(trial: Trial, value: bool) -> None:
    for name in os.environ.get(CHANGED, "").split():
        trial.sets(NAME, f"{name} is off")


CHANGE = Change(
    name=NAME,
    does="Debugging variables in the environment (CUDA_LAUNCH_BLOCKING, PYTHONMALLOC) are unset.",
    safety=SAME,
    takes="off",
    parse=off,
    environment=environment,
    absent="no variable of debugging is set",
    limits="an error is reported later than where it happens; python -X dev stays",
    edit="unset CUDA_LAUNCH_BLOCKING PYTHONMALLOC TORCH_DISTRIBUTED_DEBUG PYTHONDEVMODE",
    install=install,
)
