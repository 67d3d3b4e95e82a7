"""Finds the models that a script trains, for the changes that modify them."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

from ..places import caller
from ..wire import is_user_file
from .change import Trial


def each_model(trial: Trial, treat: Callable[[Any, Any], Any]) -> None:
    """Call ``treat(module, args)`` once for each outermost module that trains, before its first
    call runs. The call gets ``args``, or the positional arguments that ``treat`` returns. A change
    that ``treat`` makes to the module's ``forward`` takes effect from the next call.

    Modules are discovered when they are called, so this ends when the process is warm."""
    import torch
    from torch.nn.modules import module as hooks

    inside: list[Any] = []
    known: set[int] = set()

    def before(module: Any, args: Any) -> Any:
        if inside or not module.training or not torch.is_grad_enabled():
            return None
        if not any(p.requires_grad for p in module.parameters()):
            return None
        inside.append(module)
        if id(module) in known:
            return None
        known.add(id(module))
        return treat(module, args)

    def after(module: Any, args: Any, result: Any) -> None:
        if inside and inside[0] is module:
            inside.clear()

    handles = [
        hooks.register_module_forward_pre_hook(before),
        hooks.register_module_forward_hook(after, always_call=True),
    ]

    def leave() -> None:
        for handle in handles:
            handle.remove()

    trial.probe.when_warm(leave)


def called(module: Any) -> tuple[Any, str]:
    """The user's line that calls the module right now, and the variable that holds the module
    there. None and "" if unknown or if several variables hold it."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and not is_user_file(frame.f_code.co_filename):
        frame = frame.f_back
    if frame is None:
        return None, ""
    known = {**frame.f_globals, **frame.f_locals}
    names = [name for name, value in known.items() if value is module]
    return caller(), names[0] if len(names) == 1 else ""


def each_tensor(value: Any, change: Callable[[Any], Any]) -> Any:
    """A module's arguments or results, with each tensor in them changed."""
    import torch

    if isinstance(value, torch.Tensor):
        return change(value)
    if type(value) is dict:
        return {key: each_tensor(part, change) for key, part in value.items()}
    if isinstance(value, dict):
        # A library's own result class keeps its other fields.
        for key, part in value.items():
            value[key] = each_tensor(part, change)
        return value
    if type(value) in (tuple, list):
        return type(value)(each_tensor(part, change) for part in value)
    return value
