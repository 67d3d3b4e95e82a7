"""The models that a script trains, for the changes that treat them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .base import Trial


def each_model(trial: Trial, treat: Callable[[Any], None]) -> None:
    """Call ``treat`` once with each outermost module that trains, before its first call runs. What
    it changes of the module's ``forward`` holds from the next call on.

    Modules are known when they are called, so this ends when the process is warm.
    """
    import torch
    from torch.nn.modules import module as hooks

    inside: list[Any] = []
    known: set[int] = set()

    def before(module: Any, args: Any) -> None:
        if inside or not module.training or not torch.is_grad_enabled():
            return
        if not any(p.requires_grad for p in module.parameters()):
            return
        inside.append(module)
        if id(module) not in known:
            known.add(id(module))
            treat(module)

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
