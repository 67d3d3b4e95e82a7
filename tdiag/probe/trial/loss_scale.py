"""A scaled loss around the script's own ``backward()`` and ``step()``.

In float16 a gradient below 6e-8 becomes 0. Like ``torch.amp.GradScaler``, a backward pass starts
from a large factor instead of 1. Here each parameter's gradient is divided by that factor when it
arrives, before anything reads it: clipping, accumulation, DDP's exchange and all optimizers see
true gradients, so the script needs no extra call. A step with gradients that are not finite is
skipped, and the factor is halved.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Iterator
from typing import Any

from ..patches import hidden
from .change import Trial
from .optimizers import each_step

# The defaults of torch.amp.GradScaler.
FIRST_FACTOR, GROWTH, BACKOFF, GROWTH_INTERVAL = 2.0**16, 2.0, 0.5, 2000
# Backward passes that are searched for tensors whose gradients nothing would divide; heuristic: a
# GAN's two kinds of passes, and one more.
SEARCHED = 3


class LossScale:
    """``factor``: of the next backward pass; ``running``: of the pass that runs now, else 0.
    ``over``: losses are no longer scaled, and models are no longer ``lowered()``."""

    def __init__(self, trial: Trial, change: str) -> None:
        self.trial, self.change = trial, change
        self.factor, self.running = FIRST_FACTOR, 0.0
        self.passes = self.good_steps = 0
        self.over = False
        self.models: list[str] = []
        self.parameters: list[Any] = []
        self.hooked: dict[int, tuple[Any, Any]] = {}  # by id: weak reference, the hook's handle

    def install(self) -> None:
        import torch

        self.check: Any = torch._amp_foreach_non_finite_check_and_unscale_
        self.trial.patches.set(torch.autograd, "backward", self._scaled(torch.autograd.backward))
        each_step(self.trial, self._step)
        self.trial.waits[self.change] = lambda: self.over or not self.models or self.good_steps > 0

    def covers(self, module: Any) -> bool:
        """Watch this model's parameters. False, and reported, if its gradients are stored elsewhere
        or belong to one rank alone."""
        import torch
        from torch.nn.parallel import DistributedDataParallel

        ranks = torch.distributed
        several = ranks.is_available() and ranks.is_initialized() and ranks.get_world_size() > 1
        if several and not isinstance(module, DistributedDataParallel):
            self.end("only the ranks of DistributedDataParallel skip a step together")
        if not self.over:
            self.models.append(type(module).__name__)
            self.parameters += module.parameters()
        return not self.over

    def end(self, why: str) -> None:
        if not self.over:
            self.over = True
            for _, handle in self.hooked.values():
                handle.remove()
            self.trial.refused(self.change, why)

    def _scaled(self, original: Any) -> Any:
        scale = self

        @functools.wraps(original)
        def backward(tensors: Any, grad_tensors: Any = None, *args: Any, **kwargs: Any) -> Any:
            # A pass inside another one (checkpointing) is scaled already.
            if scale.running or scale.over or not scale.parameters or "grad_variables" in kwargs:
                return original(tensors, grad_tensors, *args, **kwargs)
            starts = scale.trial.probe.guard(scale.starts)(tensors, grad_tensors)
            if starts is None or scale.over:
                return original(tensors, grad_tensors, *args, **kwargs)
            scale.running = scale.factor
            try:
                return original(tensors, starts, *args, **kwargs)
            finally:
                scale.running = 0.0

        return hidden(backward)

    def starts(self, tensors: Any, gradients: Any) -> Any:
        """The gradients the pass starts from; None if torch has to raise the error itself."""
        import torch

        def listed(value: Any) -> list[Any]:
            return [value] if isinstance(value, torch.Tensor) else list(value)

        roots = listed(tensors)
        given = [None] * len(roots) if gradients is None else listed(gradients)
        if len(given) != len(roots):
            return None
        if any(g is None and root.numel() != 1 for root, g in zip(roots, given)):
            return None
        for parameter in self.parameters:
            if parameter.requires_grad:
                self.hook(parameter)
        if self.passes < SEARCHED:
            self.passes += 1
            self.search(roots)
        return [torch.full_like(root, self.factor) if g is None else g * self.factor
                for root, g in zip(roots, given)]  # fmt: skip

    def search(self, roots: list[Any]) -> None:
        import torch

        for leaf in _leaves(roots):
            if isinstance(leaf, torch.nn.Parameter):
                self.hook(leaf)
            else:
                self.end("a tensor that is not a parameter gets a gradient that would stay scaled")

    def hook(self, parameter: Any) -> None:
        known = self.hooked.get(id(parameter))
        if known is None or known[0]() is not parameter:
            handle = parameter.register_hook(self.divided)
            self.hooked[id(parameter)] = weakref.ref(parameter), handle

    def divided(self, gradient: Any) -> Any:
        return gradient * (1 / self.running) if self.running else None

    def _step(self, step: Any, optimizer: Any, args: Any, kwargs: Any) -> Any:
        if (args[0] if args else kwargs.get("closure")) is not None:
            self.end("the optimizer's step calls a closure, so it cannot be skipped afterwards")
        if self.passes and not self.over and not self._finite(optimizer):
            self.factor *= BACKOFF
            return None
        if self.passes >= SEARCHED and not self.over:
            self.good_steps += 1
            if self.good_steps % GROWTH_INTERVAL == 0:
                self.factor *= GROWTH
            for name in self.models:
                self.trial.applied(
                    self.change, f"{name} under float16 autocast, with a scaled loss"
                )
        return step(optimizer, *args, **kwargs)

    def _finite(self, optimizer: Any) -> bool:
        """Uses GradScaler's own function, so it costs the same time."""
        import torch

        kinds: dict[Any, list[Any]] = {}
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    kind = parameter.grad.device, parameter.grad.dtype
                    kinds.setdefault(kind, []).append(parameter.grad)
        if any(gradient.is_sparse for found in kinds.values() for gradient in found):
            self.end("gradients are sparse")
            return True
        bad = []
        for (device, _), gradients in kinds.items():
            found, one = (torch.full((1,), x, device=device) for x in (0.0, 1.0))
            with torch.no_grad():
                self.check(gradients, found, one)
            bad.append(found)
        return not any(bool(found) for found in bad)


def _leaves(roots: list[Any]) -> Iterator[Any]:
    """The tensors that get gradients from these."""
    yield from (root for root in roots if root.grad_fn is None)
    seen, waiting = set(), [root.grad_fn for root in roots]
    while waiting:
        node = waiting.pop()
        if node is not None and node not in seen:
            seen.add(node)
            if type(node).__name__ == "AccumulateGrad":
                yield node.variable
            waiting += [after for after, _ in node.next_functions]
