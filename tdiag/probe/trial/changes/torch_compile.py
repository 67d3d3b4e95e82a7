"""The model is compiled by torch.compile."""

from typing import Any

from ..base import ROUNDING, Change, Trial, switch

NAME = "torch.compile"


def install(trial: Trial, value: bool) -> None:
    """The outermost modules that train are known when they are called first; ``Module.compile``
    changes them in place, from their next call on."""
    import torch
    from torch.nn.modules import module as hooks

    inside: list[Any] = []

    def before(module: Any, args: Any) -> None:
        if inside or not module.training or not torch.is_grad_enabled():
            return
        if not any(p.requires_grad for p in module.parameters()):
            return
        inside.append(module)
        if module._compiled_call_impl is None:
            module.compile()
            trial.applied(NAME, f"compiled {type(module).__name__}")
        else:
            trial.refused(NAME, f"{type(module).__name__} is compiled already")

    def after(module: Any, args: Any, result: Any) -> None:
        if inside and inside[0] is module:
            inside.clear()

    handles = [
        hooks.register_module_forward_pre_hook(before),
        hooks.register_module_forward_hook(after),
    ]

    def leave() -> None:
        for handle in handles:
            handle.remove()

    trial.probe.when_warm(leave)


CHANGE = Change(
    name=NAME,
    does="The model is compiled by torch.compile.",
    safety=ROUNDING,
    parse=switch,
    absent="no module was called in training mode with gradients on",
    cannot="code outside of modules (a loss function, an optimizer) is not compiled",
    edit="model.compile() before the training loop",
    install=install,
)
