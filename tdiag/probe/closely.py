"""What is looked at in a fetch beside its time: files opened, random numbers drawn, values.

Files are counted in every fetch that is measured; the rest in the first few of a process, once
in a run: it is warm-up then.
"""

from __future__ import annotations

import builtins
import functools
import io
import os
import pathlib
import random
import sys
import threading
from typing import Any

import torch

from .batches import describe_fields
from .invisible import hidden
from .patches import Patches

FEW = 3  # files weighed, and folders named, in one fetch
# Opened by Python itself or by the system, not by the dataset.
NOT_DATA = (".py", ".pyc", ".so", ".pth")
NOT_FILES = ("/proc/", "/sys/", "/dev/")
MOST_OPENS = 100_000  # paths remembered of one fetch
MOST_OBJECTS, DEEPEST = 300, 4  # of a dataset, searched for generators of its own


class _Opens:
    """Counts what one thread opens while it fetches.

    An audit hook would see every way to open a file, but can never be removed again, and makes
    each ``id()`` of the program thirty times as dear. So ``open`` is wrapped while a fetch lasts.
    """

    def __init__(self) -> None:
        self.patches = Patches()
        self.paths: list[str] = []

    def begin(self) -> None:
        self.end()  # a fetch before this one raised
        self.paths = []
        self.thread = threading.get_ident()
        for owner in (builtins, io, os):
            self.patches.set(owner, "open", self._watched(owner.open))

    def end(self) -> list[str]:
        self.patches.undo()
        return self.paths

    def _watched(self, original: Any) -> Any:
        @functools.wraps(original)
        def open(*args: Any, **kwargs: Any) -> Any:
            if threading.get_ident() == self.thread:
                self._opened(args[0] if args else kwargs.get("file", kwargs.get("path")))
            return original(*args, **kwargs)

        return hidden(open)

    def _opened(self, path: Any) -> None:
        if isinstance(path, (bytes, pathlib.PurePath)):  # not what only says it is a path
            path = os.fsdecode(path)
        data = isinstance(path, str) and not path.endswith(NOT_DATA)
        if data and not path.startswith(NOT_FILES) and len(self.paths) < MOST_OPENS:
            self.paths.append(path)


_opens = _Opens()


def begin(closely: bool) -> Any:
    """A fetch begins. ``closely``: whether random states are compared, too."""
    states = _random_states() if closely else None
    _opens.begin()
    return states


def end(states: Any) -> dict[str, Any]:
    """It ended: `opens`, `folders` [[folder, files opened]…] and, of the first ones, `opened`
    (mean bytes of a few of the files) and `random`."""
    paths = _opens.end()
    record: dict[str, Any] = {"opens": len(paths)}
    if paths:
        folders: dict[str, int] = {}
        for path in paths:
            folder = os.path.dirname(path)
            folders[folder] = folders.get(folder, 0) + 1
        most = sorted(folders.items(), key=lambda item: -item[1])[:FEW]
        record["folders"] = [(os.path.abspath(folder), opens) for folder, opens in most]
    if states is not None:
        record["random"] = _random_states() != states
        if paths:
            record["opened"] = _mean_size(paths[:FEW])
    return record


def leave() -> None:
    """The fetch raised."""
    _opens.end()


def values_of(batch: Any, dataset: Any) -> dict[str, Any]:
    """`fields` of the batch; `own_generator`: the dataset holds a random generator."""
    with torch._C.DisableTorchFunction():
        fields = describe_fields(batch)
    return {"fields": fields, "own_generator": _holds_generator(dataset)}


def _random_states() -> tuple[Any, ...]:
    """Of the global generators, those of modules that are in use."""
    numpy = sys.modules.get("numpy.random")
    state = numpy.get_state(legacy=True) if numpy is not None else ()
    with torch._C.DisableTorchFunction():
        return (
            random.getstate(),
            tuple(part.tobytes() if hasattr(part, "tobytes") else part for part in state),
            torch.get_rng_state().tolist(),
        )


def _mean_size(paths: list[str]) -> int | None:
    sizes = [os.path.getsize(path) for path in paths if os.path.isfile(path)]
    return sum(sizes) // len(sizes) if sizes else None


def _holds_generator(dataset: Any) -> bool:
    """Whether a generator of random numbers lies in its attributes, transforms included."""
    numpy = sys.modules.get("numpy.random")
    kinds: tuple[type, ...] = (random.Random, torch.Generator)
    if numpy is not None:
        kinds += (numpy.Generator, numpy.RandomState)
    seen = 0
    level = [dataset]
    for _ in range(DEEPEST):
        below: list[Any] = []
        for value in level:
            seen += 1
            if seen > MOST_OBJECTS:
                return False
            if issubclass(type(value), kinds):
                return True
            if type(value) in (list, tuple):
                below += value[:FEW]
            else:
                below += _attributes(value)
        level = below
    return False


def _attributes(value: Any) -> list[Any]:
    """Values of its own attributes; no code of the user's is asked."""
    try:
        return list(object.__getattribute__(value, "__dict__").values())
    except AttributeError:
        return []
