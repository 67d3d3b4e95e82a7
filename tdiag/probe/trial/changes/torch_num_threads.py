"""torch computes with this many threads, whatever the script sets."""

import functools
import sys
from typing import Any

from ...patches import hidden
from ...places import caller
from ..change import ROUNDING, Change, Trial, number

NAME = "torch.num_threads"
WORKER = "_utils/worker.py"  # sets one thread in each DataLoader worker; that stays


def install(trial: Trial, value: int) -> None:
    import torch

    original = torch.set_num_threads
    before = torch.get_num_threads()

    @functools.wraps(original)
    def set_num_threads(count: Any) -> None:
        mine = not sys._getframe(1).f_code.co_filename.endswith(WORKER)
        if mine and count != value:
            trial.applied(NAME, f"threads {count} → {value}", caller())
        original(value if mine else count)

    trial.patches.set(torch, "set_num_threads", hidden(set_num_threads))
    if before == value:
        trial.refused(NAME, f"torch has {value} threads already")
    else:
        original(value)
        trial.sets(NAME, f"threads {before} → {value}")


CHANGE = Change(
    name=NAME,
    does="torch computes with this many threads, whatever the script sets.",
    safety=ROUNDING,
    takes="N",
    parse=number(1),
    absent="torch was not imported",
    limits="threads of other libraries (OpenCV, NumPy's BLAS) do not change",
    edit="torch.set_num_threads(N)",
    install=install,
)
