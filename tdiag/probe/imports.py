"""Runs a function right after a module has been imported, without importing it earlier."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
from collections.abc import Callable, Sequence
from types import ModuleType


def when_imported(name: str, action: Callable[[], None]) -> None:
    """Call ``action`` once, after the first import of ``name`` has finished."""
    if name in sys.modules:
        action()
    else:
        sys.meta_path.insert(0, _Finder(name, action))


class _Finder(importlib.abc.MetaPathFinder):
    def __init__(self, name: str, action: Callable[[], None]) -> None:
        self.name, self.action = name, action

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != self.name:
            return None
        sys.meta_path.remove(self)
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            _run_after(spec.loader, self.action)
        return spec


def _run_after(loader: importlib.abc.Loader, action: Callable[[], None]) -> None:
    """Shadow ``exec_module`` on this one loader object, for one execution.

    The loader stays the object that Python made, so ``module.__loader__`` and ``__spec__`` look
    as they always do.
    """

    def exec_module(module: ModuleType) -> None:
        del loader.exec_module
        loader.exec_module(module)
        action()

    loader.exec_module = exec_module  # type: ignore[method-assign]
