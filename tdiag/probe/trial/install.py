"""Sets up a trial: the same seeds on both sides, the changes on one side."""

from __future__ import annotations

import atexit
import multiprocessing
import random
import sys
from typing import TYPE_CHECKING

from .change import Trial
from .changes import load
from .losses import Losses

if TYPE_CHECKING:
    from ..boundary import Boundary
    from ..core import Probe

SEED = 0


def install(probe: Probe, boundary: Boundary) -> None:
    """``probe.config["trial"]``: pairs of a change's name and the text of its value."""
    wanted = probe.config.get("trial")
    if wanted is None:
        return
    trial = Trial(probe, boundary)
    if multiprocessing.parent_process() is None:
        probe.guard(_seed)()
    losses = Losses(trial)
    probe.guard(losses.install)()
    for name, text in wanted:
        change = load(name)
        try:
            change.install(trial, change.parse(text))
        except Exception as error:
            trial.refused(name, f"{type(error).__name__}: {error}")
    atexit.register(probe.recorder.flush)
    atexit.register(probe.guard(trial.write_answers))
    atexit.register(probe.guard(losses.write))


def _seed() -> None:
    """A script that seeds itself does so later and overrides this."""
    import torch

    random.seed(SEED)
    torch.manual_seed(SEED)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(SEED)
