"""Which training framework drives the loop: whose code calls the optimizer."""

from __future__ import annotations

import sys

# Nearer the user first where several are on one stack: the Trainer of transformers uses accelerate.
PACKAGES = ("transformers", "lightning", "pytorch_lightning", "accelerate")


def driver() -> tuple[str, str] | None:
    """Package and version of the framework that is on the stack, None in the user's own loop.
    To be called from within an optimizer's step."""
    found = set()
    frame = sys._getframe()
    while frame is not None:
        found.add(str(frame.f_globals.get("__name__", "")).partition(".")[0])
        frame = frame.f_back  # type: ignore[assignment]
    for package in PACKAGES:
        if package in found:
            return package, str(getattr(sys.modules.get(package), "__version__", ""))
    return None
