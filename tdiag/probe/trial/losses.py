"""Records the first losses, so that both sides can be compared step by step."""

from __future__ import annotations

import functools
from typing import Any

from ..patches import hidden
from .change import Trial

MOST_LOSSES = 32  # backward passes; enough to see a numerical change before training amplifies it


class Losses:
    """Keeps the scalar that each outermost backward pass starts from. All are read together, once,
    so that no step waits for a device."""

    def __init__(self, trial: Trial) -> None:
        self.trial = trial
        self.kept: list[Any] = []
        self.written = False
        self.depth = 0

    def install(self) -> None:
        import torch

        self.item = torch.Tensor.item  # before a change replaces it
        for owner in (torch.Tensor, torch.autograd):
            self.trial.patches.set(owner, "backward", self._watched(owner.backward))

    def _watched(self, original: Any) -> Any:
        losses = self

        @functools.wraps(original)
        def backward(*args: Any, **kwargs: Any) -> Any:
            if losses.depth:
                return original(*args, **kwargs)
            losses.trial.backwards += 1
            if not losses.written:
                losses.trial.probe.guard(losses.keep)(args[0] if args else kwargs.get("tensors"))
            losses.depth = 1
            try:
                return original(*args, **kwargs)
            finally:
                losses.depth = 0

        return hidden(backward)

    def keep(self, root: Any) -> None:
        root = root[0] if isinstance(root, (list, tuple)) and len(root) == 1 else root
        if getattr(root, "numel", int)() == 1:
            self.kept.append(root.detach())
        if len(self.kept) >= MOST_LOSSES:
            self.write()

    def write(self) -> None:
        if not self.written:
            self.written = True
            values = [float(self.item(loss)) for loss in self.kept]
            self.kept.clear()
            self.trial.probe.recorder.write(
                "trial", change="", state="losses", values=[repr(v) for v in values]
            )
