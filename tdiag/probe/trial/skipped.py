"""torch functions that do nothing when the script, or a library it uses, calls them."""

from __future__ import annotations

import functools
import os
import sys
from typing import Any

from ..patches import hidden
from ..places import caller, reader
from .change import Trial, at


def skip(trial: Trial, change: str, owner: Any, name: str) -> None:
    """Calls of ``owner.name`` from torch itself and from the probe still run."""
    import torch

    original = getattr(owner, name)
    torchs = os.path.join(os.path.dirname(torch.__file__), "")

    @functools.wraps(original)
    def skipped(*args: Any, **kwargs: Any) -> Any:
        if reader(sys._getframe(1), torchs) is None:
            return original(*args, **kwargs)
        line = caller()
        trial.applied(change, f"{owner.__name__}.{name}(){at(line)} does nothing", line)
        return None

    trial.patches.set(owner, name, hidden(skipped))
