"""The probe's finder waits for torch to be *executed*, whoever searches, finds or wraps it."""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import tdiag.probe
from tdiag.probe.imports import when_imported

from .harness import watch_code

NAME = "tdiag_test_module"


@pytest.fixture
def calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[bool]]:
    """Each call of the action: whether the module had been executed by then."""
    (tmp_path / f"{NAME}.py").write_text(f"import {NAME}_within\ndone = True\n")
    (tmp_path / f"{NAME}_within.py").write_text("")
    (tmp_path / f"{NAME}_after.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    found: list[bool] = []
    when_imported(NAME, lambda began: found.append(hasattr(sys.modules[NAME], "done")))
    yield found
    for name in [name for name in sys.modules if name.startswith(NAME)]:
        del sys.modules[name]


def test_import(calls: list[bool]) -> None:
    importlib.import_module(NAME)
    assert calls == [True]


def test_a_search_is_no_import(calls: list[bool]) -> None:
    """transformers and datasets ask for torch before they import it."""
    assert importlib.util.find_spec(NAME) is not None
    assert importlib.util.find_spec(NAME) is not None
    assert calls == []
    importlib.import_module(NAME)
    assert calls == [True]


def test_reload_does_not_watch_twice(calls: list[bool]) -> None:
    module = importlib.import_module(NAME)
    importlib.reload(module)
    sys.modules.pop(NAME)
    importlib.import_module(NAME)
    assert calls == [True]


def test_a_failed_execution_may_be_tried_again(calls: list[bool], tmp_path: Path) -> None:
    good = (tmp_path / f"{NAME}.py").read_text()
    (tmp_path / f"{NAME}.py").write_text("raise ImportError('a library is missing')\n")
    with pytest.raises(ImportError):
        importlib.import_module(NAME)
    assert calls == []
    (tmp_path / f"{NAME}.py").write_text(good + "# longer than before\n")
    importlib.invalidate_caches()
    importlib.import_module(NAME)
    assert calls == [True]


def test_a_lazy_module_counts_when_it_is_used(calls: list[bool]) -> None:
    spec = importlib.util.find_spec(NAME)
    assert spec is not None and spec.loader is not None
    spec.loader = importlib.util.LazyLoader(spec.loader)
    module = importlib.util.module_from_spec(spec)
    sys.modules[NAME] = module
    spec.loader.exec_module(module)
    importlib.import_module(f"{NAME}_after")
    assert calls == []
    assert module.done  # what it imports meanwhile does not count as its end
    assert calls == [True]


def test_an_editable_install_is_found_behind_the_path(calls: list[bool], tmp_path: Path) -> None:
    """setuptools' editable finder stands last, and the path does not hold the module."""
    (tmp_path / "elsewhere").mkdir()
    moved = (tmp_path / f"{NAME}.py").rename(tmp_path / "elsewhere" / f"{NAME}.py")

    class Editable(importlib.abc.MetaPathFinder):
        def find_spec(self, fullname: str, path: Any, target: Any = None) -> Any:
            if fullname != NAME:
                return None
            return importlib.util.spec_from_file_location(fullname, moved)

    sys.meta_path.append(Editable())
    importlib.import_module(NAME)
    assert calls == [True]


class Chained(importlib.abc.MetaPathFinder):
    """As wrapt's, ddtrace's and our own finder: in front, asks the others, wraps the loader."""

    def __init__(self) -> None:
        self.busy = False
        self.executed = False

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> Any:
        if fullname != NAME or self.busy:
            return None
        self.busy = True
        spec = importlib.util.find_spec(fullname)
        self.busy = False
        assert spec is not None and spec.loader is not None
        inner, outer = spec.loader, self

        class Loader(importlib.abc.Loader):
            def create_module(self, spec: Any) -> Any:
                return inner.create_module(spec)

            def exec_module(self, module: ModuleType) -> None:
                inner.exec_module(module)
                outer.executed = True

        spec.loader = Loader()
        return spec


def test_a_second_hook_of_the_same_kind(calls: list[bool]) -> None:
    hook = Chained()
    sys.meta_path.insert(0, hook)
    importlib.import_module(NAME)
    assert calls == [True] and hook.executed


def test_two_of_ours(calls: list[bool]) -> None:
    more: list[int] = []
    when_imported(NAME, more.append)
    importlib.import_module(NAME)
    assert calls == [True] and len(more) == 1


def test_a_finder_in_front_that_asks_nobody(calls: list[bool]) -> None:
    """typeguard's and jaxtyping's hooks take the path finder's answer for what they check."""

    class Alone(importlib.abc.MetaPathFinder):
        def find_spec(
            self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
        ) -> Any:
            find = importlib.machinery.PathFinder.find_spec
            return find(fullname, path, target) if fullname == NAME else None

    sys.meta_path.insert(0, Alone())
    importlib.import_module(NAME)
    assert calls == []
    importlib.import_module(f"{NAME}_after")
    assert calls == [True]


def test_a_loader_with_slots(calls: list[bool], tmp_path: Path) -> None:
    class Slotted:
        __slots__ = ()

        def create_module(self, spec: Any) -> None:
            return None

        def exec_module(self, module: ModuleType) -> None:
            module.done = True  # type: ignore[attr-defined]

    class Slots(importlib.abc.MetaPathFinder):
        def find_spec(self, fullname: str, path: Any, target: Any = None) -> Any:
            if fullname != NAME:
                return None
            return importlib.machinery.ModuleSpec(NAME, Slotted())  # type: ignore[arg-type]

    (tmp_path / f"{NAME}.py").unlink()
    sys.meta_path.append(Slots())
    importlib.import_module(NAME)
    importlib.import_module(f"{NAME}_after")
    assert calls == [True]


def test_a_probe_that_cannot_start_leaves_the_import_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A child that lives on, say, after its run directory was deleted."""
    monkeypatch.setitem(sys.modules, "torch", ModuleType("torch"))  # executed already
    tdiag.probe.start(str(tmp_path / "gone"))
    tdiag.probe.start(str(tmp_path))  # no config.json, and no real torch
    assert (tmp_path / "probe-error.txt").read_text().count("Error") == 1


SEARCHED_FIRST = """
import importlib.util
assert importlib.util.find_spec("torch") is not None
import torch

model = torch.nn.Linear(4, 1)
for _ in range(30):
    model.zero_grad()
    model(torch.randn(8, 4)).mean().backward()
    with torch.no_grad():  # by hand: an optimizer imports what takes longer than torch itself
        for weight in model.parameters():
            weight -= 0.01 * weight.grad
print(torch.__spec__.loader.__class__.__name__, "exec_module" in vars(torch.__loader__))
"""


def test_a_script_that_searches_for_torch_is_seen(tmp_path: Path) -> None:
    watched = watch_code(tmp_path, SEARCHED_FIRST, windows=["baseline"], cold=True)
    assert (watched.returncode, watched.out) == (0, "SourceFileLoader False\n"), watched.err
    assert watched.training()
    json.dumps(watched.processes)  # every record is whole
