"""Hooks of the script that are registered on one module, or for all modules, more than once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

import torch

from .places import definition
from .wire import is_user_file

_OF_MODULE = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")
_OF_ALL = tuple(f"_global{name}" for name in _OF_MODULE)
MOST = 8  # functions


def repeated_hooks(models: Iterable[torch.nn.Module]) -> list[tuple[tuple[Any, ...], int]]:
    """The functions that one module, or all together, have more than once, most often first:
    (file, line, name) and how often. A method counts whichever object it belongs to."""
    most: Counter[tuple[Any, ...]] = Counter()
    for hooks in _registered(models):
        if len(hooks) > 1:
            found = filter(None, map(definition, hooks.values()))
            for place, times in Counter(map(tuple, found)).items():
                most[place] = max(most[place], times)
    return [(at, n) for at, n in most.most_common(MOST) if n > 1 and is_user_file(at[0])]


def _registered(models: Iterable[torch.nn.Module]) -> Iterator[dict[Any, Any]]:
    for name in _OF_ALL:
        yield getattr(torch.nn.modules.module, name, {})
    for model in models:
        for module in model.modules():
            yield from (vars(module).get(name, {}) for name in _OF_MODULE)
