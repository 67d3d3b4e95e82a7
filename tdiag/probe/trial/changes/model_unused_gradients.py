"""Parameters that belong to no optimizer get no gradients."""

import functools
import weakref
from typing import Any

from ...only_added import OnlyAdded
from ...patches import hidden
from ..change import SAME, Change, Trial, off

NAME = "model.unused_gradients"


class Unused:
    """Parameters of the modules called during discovery. ``sums``: of those that had a gradient
    when an optimizer stepped, so that a change shows; ``added``: whether backward adds to their
    gradients without anybody clearing them; ``optimizers``: all that are alive."""

    def __init__(self, trial: Trial) -> None:
        self.trial = trial
        self.owners: dict[int, tuple[Any, str]] = {}
        self.sums: dict[int, float] = {}
        self.added: dict[int, OnlyAdded] = {}
        self.optimizers: Any = weakref.WeakSet()

    def called(self, module: Any, args: Any) -> None:
        for parameter in module._parameters.values():
            if parameter is not None and parameter.requires_grad:
                self.owners.setdefault(id(parameter), (parameter, type(module).__name__))

    def stepped(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        from ... import dynamo
        from ...models import updated

        held = updated(self.optimizers)
        for number, (parameter, _) in self.owners.items():
            if parameter.grad is not None and number not in held and number not in self.sums:
                self.sums[number] = _sum(parameter)
                if not dynamo.compiled_frames():  # a compiled graph would notice the hook
                    self.added[number] = OnlyAdded(parameter, 1, self.trial.probe.guard)

    def leave_out(self) -> None:
        """Freeze parameters that no optimizer updates, nor the script from their gradients. 16-bit
        ones stay: an optimizer may hold float32 copies of them."""
        import torch

        from ...models import updated

        held = updated(self.optimizers)
        if not held & self.owners.keys():
            return
        ranks = torch.distributed
        if ranks.is_available() and ranks.is_initialized() and ranks.get_world_size() > 1:
            self.trial.refused(NAME, "ranks exchange gradients of an agreed set of parameters")
            return
        counts: dict[str, int] = {}
        for number, before in self.sums.items():
            parameter, owner = self.owners[number]
            wide = parameter.dtype in (torch.float32, torch.float64)
            added = number in self.added and self.added[number].verdict
            if number not in held and wide and (added or _sum(parameter) == before):
                parameter.requires_grad_(False)
                parameter.grad = None
                counts[owner] = counts.get(owner, 0) + parameter.numel()
        for owner, count in counts.items():
            self.trial.applied(NAME, f"{count:,} parameters of {owner} get no gradients")


def install(trial: Trial, value: Any) -> None:
    import torch
    from torch.nn.modules.module import register_module_forward_pre_hook
    from torch.optim.optimizer import register_optimizer_step_pre_hook

    unused = Unused(trial)
    original = torch.optim.Optimizer._patch_step_function

    @functools.wraps(original)
    def made(self: Any) -> None:
        original(self)
        unused.optimizers.add(self)

    trial.patches.set(torch.optim.Optimizer, "_patch_step_function", hidden(made))
    handles = [
        register_module_forward_pre_hook(unused.called),
        register_optimizer_step_pre_hook(unused.stepped),
    ]

    def leave() -> None:
        for handle in handles:
            handle.remove()
        for watched in unused.added.values():
            watched.end()
        unused.leave_out()

    trial.probe.when_warm(leave)


def _sum(parameter: Any) -> float:
    return float(parameter.detach().double().sum())


CHANGE = Change(
    name=NAME,
    does="Parameters with gradients that no optimizer uses are frozen.",
    safety=SAME,
    takes="off",
    parse=off,
    absent="all parameters that get gradients are updated by an optimizer or by the script",
    limits="a script that reads these gradients gets None; does not apply if ranks exchange"
    " gradients, or to 16-bit parameters",
    edit="module.requires_grad_(False), once before training",
    install=install,
)
