"""Which training framework drives the loop: the one whose code calls the optimizer."""

from __future__ import annotations

import sys

# If several are on one stack, the one closest to the user: the Trainer of transformers uses
# accelerate.
PACKAGES = ("transformers", "lightning", "pytorch_lightning", "accelerate")


def driver() -> tuple[str, str] | None:
    """Package and version of the framework on the stack, None in the user's own loop. Call it from
    within an optimizer's step."""
    found = set()
    frame = sys._getframe()
    while frame is not None:
        found.add(str(frame.f_globals.get("__name__", "")).partition(".")[0])
        frame = frame.f_back  # type: ignore[assignment]
    for package in PACKAGES:
        if package in found:
            return package, str(getattr(sys.modules.get(package), "__version__", ""))
    return None
