"""Modules in evaluation mode record no gradients."""

import functools
from typing import Any

from ...patches import hidden
from ...places import caller
from ..change import SAME, Change, Trial, at, switch

NAME = "evaluation.no_grad"


def install(trial: Trial, value: bool) -> None:
    """``_compiled_call_impl`` is torch's own place for another way to call one module: neither
    pickled nor copied, and of no cost to modules that have none."""
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
        trial.probe.guard(_training if mode else _evaluating)(trial, self)
        return result

    trial.patches.set(torch.nn.Module, "train", hidden(train))


def _evaluating(trial: Trial, module: Any) -> None:
    import torch

    before = module._compiled_call_impl
    if hasattr(before, "tdiag_before"):
        return

    def call(*args: Any, **kwargs: Any) -> Any:
        if torch.is_grad_enabled() and not module.training:
            line = caller()
            trial.applied(NAME, f"{type(module).__name__} called{at(line)} under no_grad", line)
        with torch.set_grad_enabled(torch.is_grad_enabled() and module.training):
            return (before or module._call_impl)(*args, **kwargs)

    call.tdiag_before = before  # type: ignore[attr-defined]
    module.__dict__["_compiled_call_impl"] = hidden(call)


def _training(trial: Trial, module: Any) -> None:
    call = module._compiled_call_impl
    if hasattr(call, "tdiag_before"):
        del module.__dict__["_compiled_call_impl"]
        if call.tdiag_before is not None:
            module.__dict__["_compiled_call_impl"] = call.tdiag_before


CHANGE = Change(
    name=NAME,
    does="Modules in evaluation mode record no gradients.",
    safety=SAME,
    parse=switch,
    absent="no module in evaluation mode was called with gradients on",
    cannot="a model that is trained in evaluation mode (frozen batch norm) no longer trains; one"
    " evaluated in training mode is not recognised",
    edit="with torch.no_grad(): around the evaluation",
    install=install,
)
