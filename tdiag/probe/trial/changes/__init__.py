"""One change per file: ``loader.num_workers`` is in ``loader_num_workers.py``; no registry."""

from __future__ import annotations

import importlib
import pkgutil

from ..change import Change


def names() -> list[str]:
    """All changes, fixes before ceilings, by name."""
    found = [module.name for module in pkgutil.iter_modules(__path__)]
    changes = sorted((load(name) for name in found), key=lambda c: (c.kind != "fix", c.name))
    return [change.name for change in changes]


def load(name: str) -> Change:
    """The change of this name. Raises KeyError if there is none."""
    module = name.replace(".", "_")
    if module not in {found.name for found in pkgutil.iter_modules(__path__)}:
        raise KeyError(name)
    change: Change = importlib.import_module("." + module, __name__).CHANGE
    return change
