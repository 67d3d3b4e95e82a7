"""Changes to optimizers: the form of their update (foreach, fused), and their steps."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable
from typing import Any

from ..patches import hidden
from ..places import caller
from .change import Trial, at

FORMS = ("foreach", "fused")  # torch refuses both at once


def argument(name: str) -> Callable[[Trial, Any], None]:
    """Installs a change that creates each optimizer with ``name=True``."""

    def install(trial: Trial, value: Any) -> None:
        import torch

        for kind in vars(torch.optim).values():
            if isinstance(kind, type) and issubclass(kind, torch.optim.Optimizer):
                signature = inspect.signature(kind.__init__)
                if name in signature.parameters:
                    _wrap(trial, kind, name, signature)

    return install


def _wrap(trial: Trial, kind: Any, name: str, signature: inspect.Signature) -> None:
    original, change = kind.__init__, f"optimizer.{name}"

    @functools.wraps(original)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        bound = trial.probe.guard(signature.bind_partial)(self, *args, **kwargs)
        if bound is not None:
            line = caller()
            device = name == "fused" and _without_fused(bound.arguments)
            if device:
                trial.refused(change, f"this torch has no fused optimizers on {device}", line)
            elif bound.arguments.get(name):
                if change not in trial.shared:  # else this change set it, in a subclass
                    trial.refused(
                        change, f"{kind.__name__}{at(line)} has {name}=True already", line
                    )
            else:
                trial.shared[change] = True
                trial.applied(change, f"{type(self).__name__}{at(line)}: {name}=True", line)
            for form in FORMS:
                if form in signature.parameters and not device:
                    bound.arguments[form] = True if form == name else None
            args, kwargs = bound.args[1:], bound.kwargs
        original(self, *args, **kwargs)

    trial.patches.set(kind, "__init__", hidden(init))


def _without_fused(arguments: dict[str, Any]) -> str:
    """The device type of a parameter for which this torch has no fused form: "cpu" before 2.4. If
    the parameters are a generator, they become a list."""
    from torch.utils import _foreach_utils

    listed = getattr(_foreach_utils, "_get_fused_kernels_supported_devices", None)
    if listed is None or not isinstance(arguments.get("params"), Iterable):
        return ""
    given = arguments["params"] = list(arguments["params"])
    supported = listed()
    devices = (str(getattr(getattr(one, "device", None), "type", "")) for one in given)
    return next((device for device in devices if device and device not in supported), "")


def each_step(trial: Trial, answer: Callable[[Any, Any, Any, Any], Any]) -> None:
    """Every optimizer step becomes ``answer(step, optimizer, args, kwargs)``.

    torch wraps each class's ``step`` when the first optimizer of the class is created; the hooks
    that count steps are outside of ``answer``."""
    import torch

    original = torch.optim.Optimizer.profile_hook_step

    def answered(step: Any) -> Any:
        @functools.wraps(step)
        def call(self: Any, *args: Any, **kwargs: Any) -> Any:
            return answer(step, self, args, kwargs)

        return hidden(call)

    def profile_hook_step(step: Any) -> Any:
        return original(answered(step))

    trial.patches.set(torch.optim.Optimizer, "profile_hook_step", staticmethod(profile_hook_step))
