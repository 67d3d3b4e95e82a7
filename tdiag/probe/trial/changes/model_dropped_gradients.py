"""Backward computes no gradients that the script drops before their optimizer steps."""

import functools
import threading
import weakref
from typing import Any

from ...patches import hidden
from ..change import SAME, Change, Trial, at, off

NAME = "model.dropped_gradients"
# Steps of an optimizer by which all have stepped: a Wasserstein GAN's critic learns five times as
# often as its generator (Gulrajani et al. 2017).
MOST = 6
WATCHED = 3  # steps of each optimizer: the gradients of the last one may not be gone yet


class Dropped:
    """``inputs``: by what calls backward, the leaves whose gradients it shall compute."""

    def __init__(self, trial: Trial) -> None:
        from ...gradient_use import GradientUse

        self.trial, self.kind = trial, GradientUse
        self.optimizers: Any = weakref.WeakSet()
        self.use: Any = None
        self.steps: dict[int, int] = {}  # by optimizer, since all have stepped or else the start
        self.dropped: dict[Any, dict[int, Any]] = {}
        self.inputs: dict[Any, list[Any]] = {}
        self.decided = False

    def stepped(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        if self.decided:
            return
        self.optimizers.add(optimizer)
        done = self.steps[id(optimizer)] = self.steps.get(id(optimizer), 0) + 1
        if self.use is None and done == MOST:
            trial = self.trial
            self.use = self.kind(trial.probe, trial.boundary, list(self.optimizers), [])
            self.use.begin()
            self.steps = dict.fromkeys(self.steps, 0)
        elif self.use is not None and (
            min(self.steps.values()) >= WATCHED or done == MOST * WATCHED
        ):
            self.decide()

    def decide(self) -> None:
        self.decided = True
        self.use.end()
        for place, line in self.use.lines.items():
            gone = {owner: w for owner, w in line.items() if w.calls > 1 and w.gone >= w.calls - 1}
            if gone:
                self.dropped[place] = gone
        if self.dropped:
            self.leave_out()

    def leave_out(self) -> None:
        import torch

        ranks = torch.distributed
        if ranks.is_available() and ranks.is_initialized() and ranks.get_world_size() > 1:
            self.trial.refused(NAME, "ranks exchange gradients of an agreed set of parameters")
            return
        original: Any = torch.Tensor.backward
        boundary, guard, me = self.trial.boundary, self.trial.probe.guard, threading.get_ident()

        @functools.wraps(original)
        def backward(self: Any, *args: Any, **kwargs: Any) -> Any:
            inside = boundary.depth or boundary.backward_depth or threading.get_ident() != me
            if not (inside or args[3:] or kwargs.get("inputs")):
                kwargs["inputs"] = guard(needed)(self) or None
            return original(self, *args, **kwargs)

        needed = self.needed
        self.trial.patches.set(torch.Tensor, "backward", hidden(backward))

    def needed(self, loss: Any) -> list[Any]:
        """The leaves of this loss's graph without those whose gradients are dropped; empty if none
        are. Each call of backward at a line is taken to have the same."""
        from ...gradient_use import calling, leaves

        place = calling()
        if place in self.dropped and place not in self.inputs:
            gone, owners = self.dropped[place], self.use.owners
            found = [leaf for leaf, _ in leaves(loss.grad_fn)]
            self.inputs[place] = [leaf for leaf in found if owners.get(id(leaf)) not in gone]
            values = sum(leaf.numel() for leaf in found if owners.get(id(leaf)) in gone)
            line = list(place[0])
            what = f"backward{at(line)} computes no gradients for {values:,} parameters"
            self.trial.applied(NAME, what, line)
        return self.inputs.get(place, [])


def install(trial: Trial, value: Any) -> None:
    from torch.optim.optimizer import register_optimizer_step_post_hook

    dropped = Dropped(trial)
    register_optimizer_step_post_hook(trial.probe.guard(dropped.stepped))
    trial.waits[NAME] = lambda: dropped.decided


CHANGE = Change(
    name=NAME,
    does="Backward computes no gradients that are dropped before their optimizer steps.",
    safety=SAME,
    takes="off",
    parse=off,
    absent="no line was seen to compute gradients that are dropped",
    limits="does not apply to ranks, compiled models or torch.autograd.backward(); a script that"
    " reads these gradients gets old ones or None",
    edit="loss.backward(inputs=list(model.parameters())), of the model that learns from this loss",
    install=install,
)
