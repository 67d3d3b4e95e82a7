"""Where the user's evaluation is."""

from __future__ import annotations

from tdiag.evidence.kinds import Loaders, Location, Modules
from tdiag.rules.base import where


def evaluation_place(loaders: Loaders | None, modules: Modules | None) -> Location | None:
    """Where its DataLoader is made; without one, the line that calls the largest model in it."""
    for loader in loaders.loaders if loaders else ():
        if loader.role == "eval":
            return loader.created_at
    called = [module for module in modules.modules if module.evaluated_at] if modules else []
    return max(called, key=lambda module: module.parameters).evaluated_at if called else None


def over(place: Location | None, loaders: Loaders | None) -> str:
    """`` over the DataLoader at train.py:47``, `` at train.py:60``, or nothing."""
    known = loaders.loaders if loaders else ()
    made = any(loader.role == "eval" and loader.created_at == place for loader in known)
    return f"{' over the DataLoader' if made and place else ''}{where(place)}"
