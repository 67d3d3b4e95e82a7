"""Runs a function right after a module has been imported, without importing it earlier."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
import time
from collections.abc import Callable, Sequence
from types import ModuleType

Action = Callable[[int], None]


def when_imported(name: str, action: Action) -> None:
    """Call ``action`` once, after the first import of ``name`` has finished, with the moment at
    which it began (``perf_counter_ns``)."""
    if name in sys.modules:
        action(time.perf_counter_ns())
    else:
        sys.meta_path.insert(0, _Finder(name, action))


class _Finder(importlib.abc.MetaPathFinder):
    def __init__(self, name: str, action: Action) -> None:
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


def _run_after(loader: importlib.abc.Loader, action: Action) -> None:
    """Shadow ``exec_module`` on this one loader object, for one execution.

    The loader stays the object that Python made, so ``module.__loader__`` and ``__spec__`` look
    as they always do.
    """

    began = time.perf_counter_ns()

    def exec_module(module: ModuleType) -> None:
        del loader.exec_module
        loader.exec_module(module)
        action(began)

    loader.exec_module = exec_module  # type: ignore[method-assign]
