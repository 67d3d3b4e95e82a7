"""Runs a function once, right after a module has been executed, without importing it earlier.

A search is not an import: ``importlib.util.find_spec("torch")``, which transformers and datasets
call before they import torch, asks the finders and executes nothing. So the finder stays until the
module was executed. The finder that finds the module, an editable install's or another import hook
included, still does so: only the loader's ``exec_module`` is shadowed.

Some finders never ask the ones after them, and a loader may not allow shadowing. Then the next
import of any other module shows that the module has been executed.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
import time
from collections.abc import Callable, Sequence
from types import ModuleType

Action = Callable[[int], None]


def when_imported(name: str, action: Action) -> None:
    """Call ``action`` once, after the first execution of ``name`` has finished, with the time at
    which it began (``perf_counter_ns``)."""
    if _executed(name):
        action(time.perf_counter_ns())
    else:
        sys.meta_path.insert(0, _Finder(name, action))


def stop_waiting() -> None:
    """Forget every function that waits for its module."""
    sys.meta_path[:] = [finder for finder in sys.meta_path if not isinstance(finder, _Finder)]


def _executed(name: str) -> bool:
    """Whether the module exists and is neither half executed nor waiting for its first use (a
    ``LazyLoader``'s module is a subclass until then)."""
    module = sys.modules.get(name)
    if type(module) is not ModuleType:
        return False
    return not getattr(getattr(module, "__spec__", None), "_initializing", False)


class _Finder(importlib.abc.MetaPathFinder):
    def __init__(self, name: str, action: Action) -> None:
        self.name, self.action = name, action
        self.executing = False

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != self.name:
            if not self.executing and _executed(self.name):  # this finder was not asked
                self._done(time.perf_counter_ns())
            return None
        spec = self._found_by_others(path, target)
        if spec is not None and spec.loader is not None:
            self._run_after(spec.loader)
        return spec

    def _found_by_others(
        self, path: Sequence[str] | None, target: ModuleType | None
    ) -> importlib.machinery.ModuleSpec | None:
        """The result of the finders after this one. Those before it were already asked."""
        finders = list(sys.meta_path)
        behind = finders[finders.index(self) + 1 :] if self in finders else []
        for finder in behind:
            find = getattr(finder, "find_spec", None)
            if find is None:
                continue
            spec: importlib.machinery.ModuleSpec | None = find(self.name, path, target)
            if spec is not None:
                return spec
        return None

    def _run_after(self, loader: importlib.abc.Loader) -> None:
        """Shadow ``exec_module`` on this one loader object, for one execution.

        The loader stays the object that its finder made, so ``module.__loader__`` and ``__spec__``
        look as usual. An execution that fails may be tried again.
        """
        if isinstance(loader, type):
            return  # shared by every such module
        before = loader.exec_module  # perhaps another hook's

        def exec_module(module: ModuleType) -> None:
            began = time.perf_counter_ns()
            vars(loader).pop("exec_module", None)
            self.executing = True
            try:
                before(module)
            finally:
                self.executing = False
            self._done(began)

        try:
            loader.exec_module = exec_module  # type: ignore[method-assign]
        except AttributeError:  # it has slots
            pass

    def _done(self, began: int) -> None:
        if self in sys.meta_path:
            sys.meta_path.remove(self)
            self.action(began)
