"""Ranks exchange the gradients of accumulated backward passes once, in the last one."""

import functools
import weakref
from typing import Any

from ...patches import hidden
from ..change import ROUNDING, Change, Trial, switch

NAME = "ddp.no_sync"
ALIKE = 3  # consecutive steps with equally many backward passes; heuristic, like MOST_STEPS
MOST_STEPS = 16  # without ALIKE equal steps by then, the number counts as changing


class Accumulation:
    """The backward passes of one model between two optimizer steps. ``length``: how many, 0 until
    known; ``reason``: why each of them exchanges gradients after all."""

    def __init__(self, trial: Trial, model: Any) -> None:
        self.trial = trial
        self.model: Any = weakref.ref(model)
        self.steps = self.backwards = 0  # when this accumulation began
        self.index = 0  # forward passes since then
        self.lengths: list[int] = []
        self.length = 0
        self.reason = ""
        self.unreduced = False

    def waits(self) -> bool:
        """Whether the forward pass that begins now needs no gradient exchange."""
        boundary, trial = self.trial.boundary, self.trial
        self.look()
        if self.reason:
            return False
        model = self.model()
        if boundary.depth:
            self.give_up("its backward passes run inside the optimizer's step")
        elif not model.require_backward_grad_sync:
            self.give_up("it is called under no_sync() already")
        elif trial.backwards - self.backwards != self.index:
            self.give_up("it is called several times for one backward pass")
        self.index += 1
        self.unreduced = bool(self.length and self.index % self.length and not self.reason)
        if self.unreduced:
            trial.applied(NAME, f"gradients are reduced in every {self.length}th backward pass")
        return self.unreduced

    def look(self) -> None:
        """Check whether the optimizer has stepped."""
        steps = self.trial.boundary.optimizer_steps
        if steps == self.steps:
            return
        if self.index and not self.length and not self.reason:
            self.lengths.append(self.index)
            self.learn()
        self.steps, self.backwards, self.index = steps, self.trial.backwards, 0

    def learn(self) -> None:
        last = self.lengths[-ALIKE:]
        if len(last) == ALIKE and len(set(last)) == 1:
            self.length = last[0]
            if self.length == 1:
                self.give_up("there is one backward pass a step: nothing is accumulated")
        elif len(self.lengths) >= MOST_STEPS:
            self.give_up("the number of backward passes changes from step to step")

    def dropped(self) -> None:
        """zero_grad() was called."""
        self.look()
        if not self.reason and self.trial.backwards > self.backwards:
            self.give_up("its gradients are dropped between two backward passes of a step")

    def reduce(self) -> None:
        """Exchange gradients before the optimizer steps, if an accumulation ends early (last of an
        epoch)."""
        import torch

        model = self.model()
        if not self.unreduced or model is None:
            return
        self.unreduced = False
        reduce: Any = torch.distributed.all_reduce
        for parameter in model.parameters():
            if parameter.grad is not None:
                reduce(parameter.grad, group=model.process_group)
                parameter.grad /= model.process_group.size()

    def give_up(self, why: str) -> None:
        self.reason = why
        self.trial.refused(NAME, why)


def install(trial: Trial, value: bool) -> None:
    import torch
    from torch.nn.parallel import DistributedDataParallel
    from torch.optim.optimizer import register_optimizer_step_pre_hook

    known: Any = weakref.WeakKeyDictionary()  # model → its accumulation
    original: Any = DistributedDataParallel.forward

    @functools.wraps(original)
    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not (self.training and torch.is_grad_enabled()):
            return original(self, *args, **kwargs)
        if self not in known:
            known[self] = Accumulation(trial, self)
        if not known[self].waits():
            return original(self, *args, **kwargs)
        with self.no_sync():
            return original(self, *args, **kwargs)

    def each(call: Any) -> Any:
        def hook(*_: Any) -> None:
            for accumulation in list(known.values()):
                call(accumulation)

        return hook

    def watched(zero_grad: Any) -> Any:
        dropped = trial.probe.guard(each(Accumulation.dropped))

        @functools.wraps(zero_grad)
        def call(*args: Any, **kwargs: Any) -> Any:
            dropped()
            return zero_grad(*args, **kwargs)

        return hidden(call)

    trial.patches.set(DistributedDataParallel, "forward", hidden(forward))
    for owner in (torch.optim.Optimizer, torch.nn.Module):
        trial.patches.set(owner, "zero_grad", watched(owner.zero_grad))
    register_optimizer_step_pre_hook(each(Accumulation.reduce))
    trial.waits[NAME] = lambda: bool(known) and all(a.length or a.reason for a in known.values())


CHANGE = Change(
    name=NAME,
    does="While gradients are accumulated, ranks exchange them in the last backward pass only.",
    safety=ROUNDING,
    parse=switch,
    absent="no DistributedDataParallel was trained",
    limits="does not apply if the number of backward passes per step changes; gradients that the"
    " script reads before the last pass, or clips in an accumulation that ends early, are only"
    " this rank's",
    edit="with model.no_sync(): around forward and backward of all micro-batches but the last",
    install=install,
)
