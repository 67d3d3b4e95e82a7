"""Changes how modules are called while they are in evaluation mode."""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from ..patches import hidden
from .change import Trial


def each_evaluation(
    trial: Trial, around: Callable[[Any], AbstractContextManager[Any, Any]]
) -> None:
    """Call modules in evaluation mode inside ``around(module)``; back in training mode they are
    called as before.

    Uses ``_compiled_call_impl``, torch's own hook for replacing the call of one module: it is
    neither pickled nor copied, and costs nothing for modules without it."""
    import torch

    original = torch.nn.Module.train
    busy: list[Any] = []  # train() calls itself for each child

    @functools.wraps(original)
    def train(self: Any, mode: bool = True) -> Any:
        if busy:
            return original(self, mode)
        busy.append(self)
        try:
            result = original(self, mode)
        finally:
            busy.clear()
        trial.probe.guard(_training if mode else _evaluating)(self, around)
        return result

    trial.patches.set(torch.nn.Module, "train", hidden(train))


def _evaluating(module: Any, around: Any) -> None:
    before = module._compiled_call_impl
    if hasattr(before, "tdiag_before"):
        return

    def call(*args: Any, **kwargs: Any) -> Any:
        with around(module):
            return (before or module._call_impl)(*args, **kwargs)

    call.tdiag_before = before  # type: ignore[attr-defined]
    module.__dict__["_compiled_call_impl"] = hidden(call)


def _training(module: Any, around: Any) -> None:
    call = module._compiled_call_impl
    if hasattr(call, "tdiag_before"):
        del module.__dict__["_compiled_call_impl"]
        if call.tdiag_before is not None:
            module.__dict__["_compiled_call_impl"] = call.tdiag_before
