"""Activations are kept, not recomputed."""

import functools
from typing import Any

from ...patches import hidden
from ...places import caller
from ..change import SAME, Change, Trial, at, off

NAME = "torch.checkpoint"
# Arguments of torch.utils.checkpoint.checkpoint itself, torch 2.1 to 2.13.
ITS_OWN = ("use_reentrant", "context_fn", "determinism_check", "debug", "early_stop",
           "preserve_rng_state")  # fmt: skip


def install(trial: Trial, value: Any) -> None:
    from torch.utils import checkpoint as module

    @functools.wraps(module.checkpoint)
    def checkpoint(function: Any, *args: Any, **kwargs: Any) -> Any:
        line = caller()
        trial.applied(NAME, f"checkpoint(){at(line)} keeps activations", line)
        for name in ITS_OWN:
            kwargs.pop(name, None)
        return function(*args, **kwargs)

    trial.patches.set(module, "checkpoint", hidden(checkpoint))


CHANGE = Change(
    name=NAME,
    does="torch.utils.checkpoint keeps activations, so that backward recomputes none.",
    safety=SAME,
    takes="off",
    parse=off,
    absent="torch.utils.checkpoint was not called",
    limits="takes more memory; with use_reentrant=True, blocks whose inputs need no gradient are"
    " now trained",
    edit="call the block itself: block(x) instead of checkpoint(block, x)",
    install=install,
)
